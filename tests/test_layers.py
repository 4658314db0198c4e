"""Data flows one way: a folder imports only from folders above it in design order (ARCHITECTURE.md)."""

import ast
from pathlib import Path

import navia

ROOT = Path(navia.__file__).parent
ORDER = ("errors", "io", "registry", "data", "reduction", "models", "methods", "adaptation", "evaluation", "bench", "report",
         "serve", "export", "integrations", "cli")  # fmt: skip
EXCEPTIONS = {("adaptation/adapter.py", "navia.export")}  # `adapter.export` is a shortcut for `navia.export.export`


def imports(path: Path) -> set[str]:
    """Modules of navia that a file imports when it runs, also inside functions; not those for the type checker alone."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for_types = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    found = set()
    for node in ast.walk(tree):
        if id(node) in for_types:
            continue
        if isinstance(node, ast.ImportFrom) and node.module == "navia":
            found |= {f"navia.{name.name}" for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("navia."):
            found.add(node.module)
        elif isinstance(node, ast.Import):
            found |= {name.name for name in node.names if name.name.startswith("navia.")}
    return found


def test_imports_never_point_upwards() -> None:
    wrong = set()
    for path in ROOT.rglob("*.py"):
        own = path.relative_to(ROOT).with_suffix("").parts[0]
        for module in imports(path) if own != "__init__" else ():
            target = module.split(".")[1]
            if target in ORDER and ORDER.index(target) > ORDER.index(own):
                wrong.add((path.relative_to(ROOT).as_posix(), module))
    assert wrong == EXCEPTIONS


def test_every_folder_has_its_place() -> None:
    top = {path.stem for path in ROOT.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert top - {"__init__"} == set(ORDER)
