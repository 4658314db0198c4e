"""Count the calls that wait for a GPU, also where there is none: a step should read its values once, at its end."""

import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

# operators that read values, or whose shape depends on values
_OPERATORS = {
    "_local_scalar_dense", "item", "is_nonzero", "equal", "nonzero", "masked_select", "bincount", "histc",
    "repeat_interleave", "unique", "_unique2", "unique_dim", "unique_consecutive",
}  # fmt: skip
# what reads the memory of CPU tensors without an operator, and copies between host and device
_FUNCTIONS = {"tolist", "cpu", "cuda", "tensor", "as_tensor", "new_tensor"}


@contextlib.contextmanager
def count_synchronizations() -> Iterator[Counter[str]]:
    """Count by name what waits for the device, or would wait if it were a GPU.

    Numbers that are drawn on the host and read there count as well: on a CPU they look the same.

    Example:
        >>> from navia.evaluation.synchronization import count_synchronizations
        >>> adapter = navia.adapt("embedded", method="tent")
        >>> adapter.vit.asynchronous = True  # as on a GPU
        >>> with count_synchronizations() as waits:
        ...     logits = adapter(torch.zeros(2, 1, 28, 28))
        >>> dict(waits)
        {'tolist': 1}
    """
    found: Counter[str] = Counter()
    with _Operators(found), _Functions(found):
        yield found


class _Operators(TorchDispatchMode):
    def __init__(self, found: Counter[str]) -> None:
        super().__init__()
        self.found = found

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.removeprefix("aten::")
        if name in _OPERATORS or (name.startswith("index") and _has_mask(args)):
            self.found[name] += 1
        return func(*args, **(kwargs or {}))


class _Functions(TorchFunctionMode):
    def __init__(self, found: Counter[str]) -> None:
        super().__init__()
        self.found = found

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, getattr(func, "__name__", "")
        moves = name == "to" and any(isinstance(value, torch.device | str) for value in (*args[1:], *kwargs.values()))
        if (name in _FUNCTIONS or moves) and not kwargs.get("non_blocking"):
            self.found[name] += 1
        return func(*args, **kwargs)


def _has_mask(args: Any) -> bool:
    """Whether x[mask]: the number of its rows is read."""
    indices = args[1] if len(args) > 1 and isinstance(args[1], list | tuple) else args[1:2]
    return any(isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8) for index in indices)
