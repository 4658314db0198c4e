"""One self-contained HTML page: document, tables, pictures, facts. All functions are pure and escape every text."""

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import Image

from navia.errors import InputError
from navia.report.numbers import DASH, finite, shown_alike

FOLDER = Path(__file__).parent
# the browser itself refuses whatever would come from another host
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
PIXELATED_BELOW = 128  # pictures with fewer pixels a side are enlarged without smoothing


@dataclass(frozen=True)
class Section:
    """body_html: made by the functions of this package, put in as it is; title and note: plain text."""

    title: str
    body_html: str
    note: str = ""


@dataclass(frozen=True)
class Column:
    """better: which values are marked as the best of the column, None for no mark."""

    name: str
    numeric: bool = False
    better: Literal["high", "low"] | None = None


@dataclass(frozen=True)
class Cell:
    """value is what is sorted and compared; text how it is written (by default value itself); small stands beside it. best:
    whether it is marked as such, where the table is not to find that out by itself."""

    value: float | str | None
    text: str | None = None
    small: str | None = None
    best: bool | None = None


@dataclass(frozen=True)
class PictureRow:
    """images: uint8 [H, W] or [H, W, 3]; captions: one each, a line break begins a new line."""

    title: str
    images: Sequence[np.ndarray]
    captions: Sequence[str]


# ---- document


def page(title: str, lead: str, sections: Sequence[Section]) -> str:
    """The whole document. A blank line in the lead begins a new paragraph."""
    style, script = ((FOLDER / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    contents = "".join(f'<li><a href="#s{i}">{escape(s.title)}</a></li>' for i, s in enumerate(sections, 1))
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<title>{escape(title)}</title>
<link rel="icon" href="data:,">
<style>
{style}</style>
</head>
<body>
<main>
<header>
<h1>{escape(title)}</h1>
{paragraphs(lead, "lead")}
<nav aria-label="Contents"><ol>{contents}</ol></nav>
</header>
{"".join(_section(section, number) for number, section in enumerate(sections, 1))}
</main>
<script>
{script}</script>
</body>
</html>
"""


def _section(section: Section, number: int) -> str:
    note = paragraphs(section.note, "note")
    return f'<section id="s{number}">\n<h2>{escape(section.title)}</h2>\n{section.body_html}\n{note}\n</section>\n'


def paragraphs(text: str, kind: str = "") -> str:
    """Plain text as paragraphs of a class, parted at blank lines."""
    parts = [part.strip() for part in text.split("\n\n") if part.strip()]
    tag = f'<p class="{escape(kind)}">' if kind else "<p>"
    return "\n".join(f"{tag}{escape(part)}</p>" for part in parts)


def heading(title: str) -> str:
    """Of a part of a section."""
    return f'<h3 class="part">{escape(title)}</h3>'


def spaced(html: str) -> str:
    """With room below it."""
    return f'<div class="spaced">{html}</div>'


# ---- table


def table(columns: Sequence[Column], rows: Sequence[Sequence[Cell]], caption: str = "") -> str:
    """A table that sorts by a click on a header; the first column names the rows."""
    for row in rows:
        if len(row) != len(columns):
            raise InputError(f"a table of {len(columns)} columns got a row of {len(row)} cells")
    filled = [_filled(column, [row[i] for row in rows]) for i, column in enumerate(columns)]
    best = [_best(column, cells) for column, cells in zip(columns, filled, strict=True)]
    head = "".join(_header(column) for column in columns)
    body = "\n".join(
        "<tr>"
        + "".join(_cell(filled[i][r], columns[i], filled[i][r] in best[i], i == 0) for i in range(len(columns)))
        + "</tr>"
        for r in range(len(rows))
    )
    named = f"<caption>{escape(caption)}</caption>" if caption else ""
    region = f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(caption or "Table")}">'
    return f"{region}<table>{named}\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>"


def _header(column: Column) -> str:
    """The button sleeps until the script wakes it: without one it would do nothing."""
    first = "descending" if column.better == "high" else "ascending"
    kind = ' class="number"' if column.numeric else ""
    button = f'<button type="button" disabled>{escape(column.name)}</button>'
    return f'<th scope="col"{kind} aria-sort="none" data-first="{first}">{button}</th>'


def _filled(column: Column, cells: Sequence[Cell]) -> list[Cell]:
    """The cells with their texts; a number that is missing is a dash, whatever its text says."""
    bare = {i: value for i, cell in enumerate(cells) if cell.text is None and (value := finite(cell.value)) is not None}
    alike = dict(zip(bare, shown_alike(list(bare.values())), strict=True))
    filled = []
    for i, cell in enumerate(cells):
        known = isinstance(cell.value, str) or finite(cell.value) is not None
        if not known and cell.best is None and (column.numeric or cell.value is not None or cell.text is None):
            filled.append(Cell(None, DASH))
        else:
            filled.append(replace(cell, text=alike.get(i, cell.text if cell.text is not None else str(cell.value))))
    return filled


def _best(column: Column, cells: Sequence[Cell]) -> list[Cell]:
    """The cells that read the same as the best one: a difference that is not shown must not be marked."""
    if any(cell.best is not None for cell in cells):
        return [cell for cell in cells if cell.best]
    known = [(value, cell) for cell in cells if (value := finite(cell.value)) is not None]
    if column.better is None or len(known) < 2:
        return []
    top = (max if column.better == "high" else min)(known, key=lambda pair: pair[0])[1]
    winners = [cell for _, cell in known if cell.text == top.text]
    return winners if len(winners) < len(known) else []


def _cell(cell: Cell, column: Column, best: bool, first: bool) -> str:
    text = escape(cell.text or "")
    key = cell.value if isinstance(cell.value, str) else "" if (value := finite(cell.value)) is None else repr(value)
    small = f" <small>{escape(cell.small)}</small>" if cell.small else ""
    inner = f'<strong class="best">{text}</strong>{small}' if best else f"{text}{small}"
    kind = ' class="number"' if column.numeric else ""
    tag, scope = ("th", ' scope="row"') if first else ("td", "")
    return f'<{tag}{scope}{kind} data-key="{escape(key)}">{inner}</{tag}>'


# ---- pictures and facts


def pictures(rows: Sequence[PictureRow]) -> str:
    """Rows of captioned pictures, inlined."""
    return "\n".join(_picture_row(row) for row in rows)


def _picture_row(row: PictureRow) -> str:
    if len(row.images) != len(row.captions):
        raise InputError(f"pictures {row.title!r}: {len(row.images)} images, {len(row.captions)} captions")
    cells = "".join(_picture(*pair, row.title) for pair in zip(row.images, row.captions, strict=True))
    return f'<div class="pictures"><h3>{escape(row.title)}</h3><div class="strip">{cells}</div></div>'


def _picture(image: np.ndarray, caption: str, title: str) -> str:
    kind = ' class="pixels"' if max(image.shape[:2]) < PIXELATED_BELOW else ""
    size = f'width="{image.shape[1]}" height="{image.shape[0]}"'
    lines = "".join(f"<span>{escape(line)}</span>" for line in caption.split("\n"))
    return (
        f'<figure><img{kind} {size} alt="{escape(title)}" src="{png_uri(image)}"><figcaption>{lines}</figcaption></figure>'
    )


def png_uri(image: np.ndarray) -> str:
    """uint8 [H, W] or [H, W, 3] as a data URI."""
    if image.dtype != np.uint8 or image.ndim not in (2, 3) or (image.ndim == 3 and image.shape[2] != 3) or not image.size:
        raise InputError(f"a picture is uint8 [H, W] or [H, W, 3], got {image.dtype} {list(image.shape)}")
    file = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(image)).save(file, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode("ascii")


def facts(items: Mapping[str, str], summary: str = "All settings") -> str:
    """Names and values behind a summary that opens on a click."""
    body = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in items.items())
    return f'<details class="facts"><summary>{escape(summary)}</summary><dl>{body}</dl></details>'


def steps(items: Sequence[tuple[str, str]]) -> str:
    """Sentences, each with the command that it speaks of."""
    body = "".join(f"<li>{paragraphs(text)}<pre><code>{escape(command)}</code></pre></li>" for text, command in items)
    return f'<ol class="steps">{body}</ol>'
