"""LaTeX tables: balanced, escaped, and compiled where there is a compiler."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from navia.data.corruptions import names
from navia.report.markup import latex, latex_table
from navia.report.tables import Results, tabulate
from tests.report.test_results import made_up, made_up_grid, only

NASTY = ("50 % {of_it} #1 \\ ^~", '[ours] * <a> | "b"', "*", "a_b & c$")


def nasty_rows(domains: tuple[str, ...]) -> list[dict[str, Any]]:
    """Labels that mean something to LaTeX, each at the beginning of a row, and one after a rule."""
    rows = [made_up("navia", domain, options={"a_b": i}, label=label) for i, label in enumerate(NASTY) for domain in domains]
    return rows + [made_up("tent", domain, realtime=True, label=NASTY[1]) for domain in domains]


def everything() -> Results:
    """All corruptions, six of them, and one: two tables, a scaled one, and a small one."""
    few = [{**row, "batch": 2} for row in nasty_rows(names()[:6])]
    one = [{**row, "batch": 1, "model": "hf:org/na_me%1"} for row in nasty_rows(("fog",))]
    return tabulate([*made_up_grid(), *nasty_rows(("fog",)), *few, *one])


def test_braces_dollars_and_columns_are_balanced() -> None:
    results = everything()
    assert len(results.tables) == 3
    text = latex(results)
    bare = text.replace("\\\\", "").replace("\\{", "").replace("\\}", "").replace("\\$", "")
    depth = 0
    for sign in bare:
        depth += (sign == "{") - (sign == "}")
        assert depth >= 0
    assert depth == 0
    assert bare.count("$") % 2 == 0
    for name in ("table", "tabular"):
        assert text.count(f"\\begin{{{name}}}") == text.count(f"\\end{{{name}}}") == 4
    for tabular in re.findall(r"\\begin\{tabular\}\{l(r+)\}(.*?)\\end\{tabular\}", text, flags=re.DOTALL):
        rows = [row for row in tabular[1].splitlines() if "&" in row and "multicolumn" not in row]
        assert {len(re.findall(r"(?<!\\)&", row)) for row in rows} == {len(tabular[0])}
    without_comments = re.sub(r"^% .*$|\{%$", "", text, flags=re.MULTILINE)
    assert not re.search(r"(?<!\\)[%#_]", without_comments)
    assert all(f"\\{rule}rule" in text for rule in ("top", "mid", "bottom"))


def test_many_domains_make_a_table_of_their_own() -> None:
    table = only(tabulate(made_up_grid()))
    summed, single = latex_table(table).split("\\end{table}\n\n")
    assert "average" in summed
    assert "shot noise" not in summed
    assert "\\scriptsize" in summed  # intervals
    assert "shot noise" in single
    assert "$\\pm$" not in single
    few = latex_table(only(tabulate(nasty_rows(names()[:6]))))
    assert few.count("\\begin{table}") == 1


def test_values_stand_above_their_intervals() -> None:
    text = latex_table(only(tabulate([made_up("none", top1=0.4), made_up("align", top1=0.6)])))
    best = next(i for i, row in enumerate(text.splitlines()) if "\\textbf{60.0}" in row)
    assert re.match(r" & \{\\scriptsize 56\.9--63\.0\}", text.splitlines()[best + 1])


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no pdflatex: install texlive-latex-recommended")
def test_it_compiles_with_the_packages_that_it_names_and_nothing_sticks_out(tmp_path: Path) -> None:
    text = latex(everything())
    (tmp_path / "results.tex").write_text(text, encoding="utf-8")
    packages = "\n".join(re.findall(r"^% (\\usepackage\{\w+\})$", text, flags=re.MULTILINE))
    document = f"\\documentclass{{article}}\n{packages}\n\\begin{{document}}\n\\input{{results}}\n\\end{{document}}\n"
    (tmp_path / "paper.tex").write_text(document)
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "-no-shell-escape", "paper.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, errors="replace")
    log = (tmp_path / "paper.log").read_text(errors="replace")
    assert done.returncode == 0, re.findall(r"^!.*$|^l\.\d+.*$", log, flags=re.MULTILINE)
    assert (tmp_path / "paper.pdf").stat().st_size > 10_000
    assert "Overfull" not in log
    assert "Missing character" not in log
