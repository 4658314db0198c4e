"""Text -> reducer: 'none', 'tome:8', 'tome:8,-1', 'evit:[4,4,0]', 'tofu:8,split=6', 'tome:8,proportional=false'."""

import dataclasses
import re
from typing import Any

from navia.errors import SpecError, known_names
from navia.reduction.base import REDUCERS, Reducer

ReducerLike = str | Reducer | None

_FORMS = "'none', 'tome:8', 'evit:8', 'tofu:8', with inflection 'tome:8,-1', per block 'tome:[8,8,4]'"


def parse(spec: ReducerLike) -> Reducer:
    """A reducer from its text form; reducers pass through, None means no reduction."""
    if isinstance(spec, Reducer):
        return spec
    if spec is None:
        spec = "none"
    if not isinstance(spec, str):
        raise SpecError(f"a reducer is a text such as {_FORMS} or a navia reducer object, got {type(spec).__name__}")
    name, colon, rest = spec.strip().partition(":")
    kind = REDUCERS.get(name)
    if name == "none":
        if colon:
            raise SpecError(f"reducer 'none' takes no amount, got {spec!r}")
        return kind()
    numbers: list[Any] = []
    options: dict[str, Any] = {}
    for part in re.findall(r"\[[^\]]*\]|[^,]+", rest):
        key, equals, value = part.partition("=")
        if equals:
            options[key.strip()] = _option(kind, key.strip(), value.strip(), spec)
        else:
            numbers.append(_number(part.strip(), spec))
    if len(numbers) == 1:
        r = numbers[0]
    elif len(numbers) == 2 and not any(isinstance(n, list) for n in numbers):
        r = tuple(numbers)
    else:
        raise SpecError(f"malformed reducer {spec!r}; known forms: {_FORMS}")
    return kind(r=r, **options)


def _number(text: str, spec: str) -> int | float | list[int]:
    try:
        if text.startswith("[") and text.endswith("]"):
            return [int(n) for n in text[1:-1].split(",")] if text != "[]" else []
        return int(text) if re.fullmatch(r"[+-]?\d+", text) else float(text)
    except ValueError:
        raise SpecError(f"malformed reducer {spec!r}: {text!r} is not a number; known forms: {_FORMS}") from None


def _option(kind: type[Reducer], key: str, value: str, spec: str) -> bool | int:
    defaults = {field.name: field.default for field in dataclasses.fields(kind) if field.name != "r"}
    if key not in defaults:
        raise SpecError(f"reducer {spec!r}: no option {key!r}{known_names(key, defaults)}")
    switch = isinstance(defaults[key], bool)
    if switch and value.lower() in ("true", "false"):
        return value.lower() == "true"
    if not switch and re.fullmatch(r"\d+", value):
        return int(value)
    raise SpecError(f"reducer {spec!r}: option {key} must be {'true or false' if switch else 'a number'}, got {value!r}")
