"""Rows of a benchmark -> tables of what may be compared, and in words why the rest may not. Nothing is read or written here.

Each kept spec has a table of its own; rows that no spec asks for are grouped by what they share. Two rows stand in one table
if everything but the method under test was the same: model and weights, preprocessing, pictures, stream, batch, source, and
the version of navia. Within a table, lines that answer another question (under a clock, or scored after a given number of
batches) are blocks of their own: the best of a column is the best of its block.
"""

from navia.report.results.build import tabulate
from navia.report.results.collapse import Collapse, collapses, effective_classes
from navia.report.results.compare import Difference, compared, difference, differences, highest, is_cut
from navia.report.results.lines import Line
from navia.report.results.protocol import short_path
from navia.report.results.reading import best, how_to_read, interval_text, intervals_and_seeds, texts, written
from navia.report.results.stream import legible, running
from navia.report.results.sweeps import RATES, Sweep, convergence, rate_sweeps, reduction_sweeps, relative_curves
from navia.report.results.tables import Block, Results, Table
from navia.report.results.tsne import Panel, Picture, tsne_pictures
from navia.report.results.values import GMACS, MS, Column, Row, Traces, Value, t95

__all__ = [
    "GMACS",
    "MS",
    "RATES",
    "Block",
    "Collapse",
    "Column",
    "Difference",
    "Line",
    "Panel",
    "Picture",
    "Results",
    "Row",
    "Sweep",
    "Table",
    "Traces",
    "Value",
    "best",
    "collapses",
    "compared",
    "convergence",
    "difference",
    "differences",
    "effective_classes",
    "highest",
    "how_to_read",
    "interval_text",
    "intervals_and_seeds",
    "is_cut",
    "legible",
    "rate_sweeps",
    "reduction_sweeps",
    "relative_curves",
    "running",
    "short_path",
    "t95",
    "tabulate",
    "texts",
    "tsne_pictures",
    "written",
]
