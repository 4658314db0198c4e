"""Classifiers that are known: a linear layer, or a sequence of modules that ends in one."""

from torch import nn

from navia.errors import ModelError


def num_outputs(classifier: nn.Module) -> int:
    """How many classes a classifier has. ModelError for one that is not known, or does not give logits."""
    last = _last(classifier)
    if isinstance(last, nn.Linear):
        return last.out_features
    if last is None:
        raise ModelError("the model has no classifier (num_classes=0, num_labels=0); create it with a number of classes")
    known = "an nn.Linear, or an nn.Sequential that ends in one and so gives logits, is known"
    if last is classifier:
        raise ModelError(f"its classifier is a {type(last).__name__}; {known}")
    raise ModelError(f"its classifier ends in {type(last).__name__}; {known}")


def _last(module: nn.Module) -> nn.Module | None:
    """The last module of a (nested) sequence that is neither dropout nor identity; None: there is none."""
    if isinstance(module, nn.Dropout | nn.Identity):
        return None
    if isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward:
        return next((last for part in reversed(module) if (last := _last(part)) is not None), None)
    return module
