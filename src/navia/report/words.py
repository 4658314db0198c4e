"""Words that several pages and tables share."""

from collections.abc import Sequence


def readable(name: str) -> str:
    """A corruption, domain or option as people write it: 'gaussian noise'."""
    return name.replace("_", " ")


def capital(text: str) -> str:
    """A beginning of a sentence; other capitals stay: 'ImageNet-R'."""
    return text[:1].upper() + text[1:]


def listed(names: Sequence[str]) -> str:
    """'fog, snow and frost'."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def cost_unit(largest_gmacs: float) -> tuple[str, float]:
    """Name, and factor to it from GMACs: small models cost thousandths of one, which nobody wants to read."""
    return ("GMACs/image", 1.0) if largest_gmacs >= 1 else ("MMACs/image", 1000.0)


COST_NOTE = (
    "Cost counts the multiply-accumulates of the forward passes, attention included, and is the same on every computer. "
    "Backward passes are not in it, but in the milliseconds, which hold for the computer of this run only."
)
