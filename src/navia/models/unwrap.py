"""Models inside wrappers: DataParallel, DistributedDataParallel, torch.compile and PEFT."""

import copy

from torch import nn

from navia.errors import ModelError

_INNER = {  # wrapper class -> attribute of the wrapped module, which has the same weights
    "torch.DataParallel": "module",
    "torch.DistributedDataParallel": "module",
    "torch.OptimizedModule": "_orig_mod",  # torch.compile
}


def unwrap_module(model: nn.Module) -> nn.Module:
    """Return the model inside wrappers, with the same weights.

    A `PeftModel` is copied and its adapters are merged into the copy, so that the given model does not change.

    Args:
        model: A module, wrapped or not. Wrappers may be nested.

    Raises:
        ModelError: The weights are sharded (FSDP), or PEFT layers cannot be merged.

    Example:
        >>> unwrap_module(torch.nn.DataParallel(model)) is model
        True
    """
    while True:  # classes by name: importing torch._dynamo or peft only for the check would take seconds
        names = {f"{kind.__module__.split('.')[0]}.{kind.__name__}" for kind in type(model).__mro__}
        attribute = next((_INNER[name] for name in names if name in _INNER), None)
        if attribute is not None:
            model = getattr(model, attribute)
        elif "peft.PeftModel" in names:
            model = _merge_peft(model)
        elif "torch.FullyShardedDataParallel" in names:
            raise ModelError(
                "FullyShardedDataParallel holds a part of the weights only: gather them with "
                "torch.distributed.checkpoint.state_dict.get_model_state_dict, and load them into the plain model"
            )
        else:
            break
    if any(type(module).__module__.startswith("peft.") for module in model.modules()):
        raise ModelError(
            f"{type(model).__name__} has layers of PEFT that are not merged: give the PeftModel that made them, or the "
            "result of its merge_and_unload()"
        )
    return model


def _merge_peft(model: nn.Module) -> nn.Module:
    try:
        merged: nn.Module = copy.deepcopy(model).merge_and_unload()  # type: ignore[operator]
    except Exception as error:  # prompt tuning and some adapters cannot be merged
        reason = f"{type(error).__name__}: {error}"
        raise ModelError(f"cannot merge {type(model).__name__} (model.merge_and_unload()): {reason}") from error
    return merged
