"""The page at `/`."""

from pathlib import Path

_FOLDER = Path(__file__).parent
_KINDS = {".css": "text/css", ".js": "text/javascript"}  # browsers are told not to guess, and a system's table may be odd

# path -> file and media type
FILES = {"/": (_FOLDER / "index.html", "text/html")} | {
    f"/{file.name}": (file, _KINDS[file.suffix]) for file in sorted(_FOLDER.iterdir()) if file.suffix in _KINDS
}
