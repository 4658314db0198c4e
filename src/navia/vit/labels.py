"""What a model's classes are called."""

from navia.images import imagenet, sample
from navia.vit.vit import ViT


def class_names(vit: ViT) -> tuple[str, ...] | None:
    """Names in class order: the model's own (transformers), the sample's, ImageNet's for 1000 classes; None: unknown."""
    own = getattr(getattr(vit.model, "config", None), "id2label", None)
    if own and len(own) == vit.num_classes and not all(str(name).startswith("LABEL_") for name in own.values()):
        return tuple(str(own[i]) for i in sorted(own))
    if vit.name == "embedded":
        return sample.CLASSES
    return imagenet.names() if vit.num_classes == 1000 else None
