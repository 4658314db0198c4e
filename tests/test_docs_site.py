"""The documentation builds as a site without a warning, its links lead somewhere, and it asks no other host for anything."""

import os
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

pytestmark = pytest.mark.slow

pytest.importorskip("material")
ROOT = Path(__file__).parents[1]
LOADS = {("script", "src"), ("img", "src"), ("link", "href"), ("iframe", "src"), ("source", "src"), ("object", "data")}


class Page(HTMLParser):
    """ids: places that a link may lead to. links: (tag, attribute, target)."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[tuple[str, str, str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" or (tag == "a" and name == "name"):
                self.ids.add(value or "")
            elif name in ("href", "src", "data") and value is not None:
                self.links.append((tag, name, value))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("site")
    # not --quiet, which would also silence the warnings that --strict counts
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(target)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"})
    assert done.returncode == 0, done.stderr
    return target


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {path: Page(path.read_text()) for path in sorted(site.rglob("*.html"))}


def test_every_page_is_there(site: Path, pages: dict[Path, Page]) -> None:
    written = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")}
    assert written <= {path.relative_to(site) for path in pages}
    assert (site / "search" / "search_index.json").is_file()


def test_links_lead_somewhere(site: Path, pages: dict[Path, Page]) -> None:
    broken = []
    for path, page in pages.items():
        if path.name == "404.html":  # served from anywhere, so that its links begin at the root
            continue
        for tag, _, link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                if parts.scheme not in ("http", "https", "mailto") or (parts.scheme != "mailto" and "." not in parts.netloc):
                    broken.append(f"{path.name}: {tag} {link} is no address")
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            if not target.is_relative_to(site) or not target.is_file():
                broken.append(f"{path.name}: {tag} {link} is not there")
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].ids:
                broken.append(f"{path.name}: {link} has no such heading")
    assert not broken, "\n".join(broken)


def test_asks_no_other_host(pages: dict[Path, Page]) -> None:
    for path, page in pages.items():
        for tag, name, link in page.links:
            assert (tag, name) not in LOADS or not urlsplit(link).netloc, f"{path.name} loads {link}"


def test_the_reference_shows_signatures_and_examples(site: Path) -> None:
    text = (site / "reference" / "adaptation.html").read_text()
    assert 'id="navia.adapt"' in text
    assert text.count('class="doc-section-title">Examples:') >= 5
