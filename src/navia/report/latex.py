"""Tables of results as LaTeX, for \\input into a paper."""

from collections.abc import Sequence

from navia.report.results import Block, Column, Results, Table, best, how_to_read, interval_text, texts
from navia.report.tables import setting_text

PACKAGES = ("booktabs", "graphicx")
# wider than the text: scaled down to it; \width is graphicx' name for the natural width
_FIT = "\\resizebox{\\ifdim\\width>\\textwidth\\textwidth\\else\\width\\fi}{!}{%"
_ESCAPED = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "–": "--", "−": "$-$", "<": "$<$", ">": "$>$",
    "|": "$|$", "[": "{[}", "]": "{]}", "*": "{*}",  # at the beginning of a row \\ and \midrule would take them for options
}  # fmt: skip


def latex(results: Results) -> str:
    """All tables; a comment above them says what the preamble needs."""
    needed = "\n".join(f"% \\usepackage{{{package}}}" for package in PACKAGES)
    head = f"% Tables of `navia report`: \\input this file. The preamble needs\n{needed}\n"
    return "\n".join([head, *(latex_table(table) for table in results.tables)])


def latex_table(table: Table) -> str:
    """One table, or of many domains two: what sums up with its intervals, then every domain with its number alone."""
    caption = " ".join([f"{table.title}.", setting_text(table), *how_to_read(table)])
    if not table.is_wide:
        return _environment(table, table.columns, caption, f"navia-{table.number}")
    more = f"{table.title}, domain by domain. Top-1 accuracy in percent; intervals have no room here, but in results.csv."
    return "\n".join(
        [
            _environment(table, table.summed, caption, f"navia-{table.number}"),
            _environment(table, table.single, more, f"navia-{table.number}-domains", turned=True),
        ]
    )


def _environment(table: Table, columns: Sequence[Column], caption: str, label: str, turned: bool = False) -> str:
    """turned: column titles run upwards, and cells have no intervals."""
    head = " & ".join(["method", *(_title(column, turned) for column in columns)])
    body = "\n\\midrule\n".join(_block(block, columns, intervals=not turned) for block in table.blocks)
    lines = [
        "\\begin{table}[t]",
        "\\centering",
        "\\setlength{\\belowcaptionskip}{6pt}",
        f"\\caption{{{_text(caption)}}}",
        f"\\label{{tab:{label}}}",
        "\\setlength{\\tabcolsep}{3.5pt}",
        _FIT,
        f"\\begin{{tabular}}{{l{'r' * len(columns)}}}",
        "\\toprule",
        f"{head} \\\\",
        "\\midrule",
        body,
        "\\bottomrule",
        "\\end{tabular}}",
        "\\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _title(column: Column, turned: bool) -> str:
    """Words below each other, so that a column is no wider than its numbers need."""
    words = _text(column.title)
    return f"\\rotatebox{{90}}{{{words}}}" if turned else "\\shortstack[r]{" + words.replace(" ", " \\\\ ") + "}"


def _block(block: Block, columns: Sequence[Column], intervals: bool) -> str:
    span = f"\\multicolumn{{{len(columns) + 1}}}{{l}}{{\\emph{{{_text(block.title)}}}}} \\\\"
    values = [_values(block, column) for column in columns]
    rows = [span] if block.title else []
    for i, line in enumerate(block.lines):
        row = " & ".join([_text(line.name), *(column[i] for column in values)])
        small = [interval_text(line.value(column)) if intervals and column.is_accuracy else "" for column in columns]
        if not any(small):
            rows.append(f"{row} \\\\")
            continue
        below = "".join(f" & {{\\scriptsize {_text(text)}}}" if text else " &" for text in small)
        rows += [f"{row} \\\\[-3pt]", f"{below} \\\\[2pt]"]  # nearer to their own line than to the next
    return "\n".join(rows)


def _values(block: Block, column: Column) -> list[str]:
    shown = [_text(text) for text in texts(block, column)]
    return [f"\\textbf{{{text}}}" if mark else text for text, mark in zip(shown, best(block, column), strict=True)]


def _text(text: str) -> str:
    return "".join(_ESCAPED.get(sign, sign) for sign in text).replace(r" \%", r"~\%")
