"""How many tokens go at which block."""

from collections.abc import Sequence

from navia.errors import SpecError

# int: the same r at every block; (r, inflection): linear from one end to the other; list: block by block, then 0
Amount = int | tuple[int, float] | Sequence[int]


def amounts(r: Amount, depth: int) -> tuple[int, ...]:
    """The number of tokens to remove at each of `depth` blocks.

    (r, i) runs linearly from r(1-i) to r(1+i), truncated: i = -1 removes most tokens early, i = 1 late, and the total
    stays near r * depth.
    """
    if isinstance(r, int):
        return (r,) * depth
    if isinstance(r, tuple):
        first = int(r[0] * (1.0 - r[1]))
        last = 2 * r[0] - first
        step = (last - first) / (depth - 1) if depth > 1 else 0.0
        return tuple(int(first + step * layer) for layer in range(depth))
    if len(r) > depth:
        raise SpecError(f"r={format_amount(r)}: {len(r)} amounts given, but the model has {depth} blocks")
    return (*r, *(0,) * (depth - len(r)))


def check_amount(r: object) -> Amount:
    """`r` as one of the three forms, or an error that says which are known."""
    if isinstance(r, bool) or not isinstance(r, int | tuple | list):
        raise SpecError(f"r must be an int, an (int, inflection) pair or a list of ints, got {r!r}")
    if isinstance(r, int):
        if r < 0:
            raise SpecError(f"r must not be negative, got {r}")
        return r
    if isinstance(r, tuple):
        if len(r) != 2 or not isinstance(r[0], int) or not isinstance(r[1], int | float) or not -1 <= r[1] <= 1:
            raise SpecError(f"an inflected r is (int, inflection between -1 and 1), got {r!r}")
        check_amount(r[0])
        return r[0], float(r[1]) + 0.0  # no negative zero, which would have a text form of its own
    if not all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in r):
        raise SpecError(f"a listed r holds one int >= 0 per block, got {r!r}")
    return list(r)


def format_amount(r: Amount) -> str:
    """The text form that `navia.reduction.parse` reads back."""
    if isinstance(r, int):
        return str(r)
    if isinstance(r, tuple):
        short = f"{r[1]:g}"
        return f"{r[0]},{short if float(short) == r[1] else r[1]}"
    return "[" + ",".join(str(n) for n in r) + "]"
