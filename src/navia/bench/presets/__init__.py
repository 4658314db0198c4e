"""The paper's tables and figures as specs: one YAML file each beside this one, its first comment line says what it is."""

from importlib import resources
from pathlib import Path

from navia.bench.spec import Spec, parse_spec, read_spec
from navia.errors import SpecError, known_names


def presets() -> dict[str, str]:
    """Names, and what each is."""
    files = sorted((f for f in resources.files(__name__).iterdir() if f.name.endswith(".yaml")), key=lambda f: f.name)
    return {f.name.removesuffix(".yaml"): f.read_text().splitlines()[0].lstrip("# ") for f in files}


def named(spec: str) -> Spec:
    """A preset by its name, or the spec in a file."""
    if spec in presets():
        return parse_spec((resources.files(__name__) / f"{spec}.yaml").read_text(), spec)
    if Path(spec).suffix in (".yaml", ".yml"):
        return read_spec(Path(spec))
    raise SpecError(f"no preset {spec!r}{known_names(spec, presets())} (or give a .yaml file)")


def name_of(spec: str) -> str:
    """Under which `navia bench` keeps a spec beside its rows: the preset's name, or the file's without its suffix."""
    return spec if spec in presets() else Path(spec).stem
