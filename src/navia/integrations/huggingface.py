"""`navia.pipeline`: an adapter behind the `image-classification` pipeline of transformers."""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from navia.data.preprocessing import Preprocessing
from navia.errors import NaviaError, SpecError
from navia.models.labels import class_names

if TYPE_CHECKING:
    from transformers import ImageClassificationPipeline

    from navia.adaptation.adapter import Adapter


def pipeline(adapter: "Adapter", *, learn: bool = True, **options: Any) -> "ImageClassificationPipeline":
    """A transformers pipeline that answers with `adapter`, of whatever library its model is.

    learn: adapt to what it answers; False: answer only. options: those of the pipeline, such as batch_size and top_k.
    Each batch is one step, so batch_size=16 or more is wise: with the pipeline's own default every picture is a step.
    Pictures are prepared as `vit.preprocessing` says; answers come from before the update.
    """
    try:
        import transformers
    except ImportError as error:
        raise NaviaError("the pipeline needs the transformers package: pip install 'navia[hf]'") from error
    fixed = [name for name in ("model", "image_processor", "device") if name in options]
    if fixed:
        raise SpecError(
            f"{', '.join(fixed)} come(s) from the adapter: make it from navia.load(model, preprocessing=...).to(device)"
        )

    class AdaptingPipeline(transformers.ImageClassificationPipeline):  # type: ignore[misc]
        def check_model_type(self, supported_models: object) -> None:
            """The adapter took the model; the names of transformers' own classes say nothing about it."""

    model = Answering(adapter, _config(adapter), learn)
    return transformers.pipeline(
        "image-classification",
        model=model,
        image_processor=Processor(adapter.source_vit.preprocessing),
        pipeline_class=AdaptingPipeline,
        device=model.device,
        **options,
    )


class Answering(nn.Module):
    """What a pipeline asks of a model: `config`, `device`, `dtype`, and an output with `logits`."""

    def __init__(self, adapter: "Adapter", config: Any, learn: bool) -> None:
        super().__init__()
        self.adapter = adapter
        self.config = config
        self.learn = learn

    @property
    def device(self) -> torch.device:
        return self.adapter.source_vit.device

    @property
    def dtype(self) -> torch.dtype:
        return self.adapter.source_vit.dtype

    def forward(self, pixel_values: Tensor) -> Any:
        from transformers.modeling_outputs import ImageClassifierOutput

        answer = self.adapter if self.learn else self.adapter.predict
        return ImageClassifierOutput(logits=answer(pixel_values))


class Processor:
    """navia's preprocessing, called as transformers calls its image processors."""

    def __init__(self, preprocessing: Preprocessing) -> None:
        self.preprocessing = preprocessing

    def __call__(self, images: Any, return_tensors: str = "pt") -> Any:
        from transformers import BatchFeature

        several = images if isinstance(images, list | tuple) else [images]
        return BatchFeature({"pixel_values": self.preprocessing.batch(several)})


def _config(adapter: "Adapter") -> Any:
    """Names of the classes that the adapter answers with, in its order; LABEL_7 for class 7 where nobody knows."""
    from transformers import PreTrainedConfig

    names = class_names(adapter.source_vit) or [f"LABEL_{i}" for i in range(adapter.source_vit.num_classes)]
    mask = adapter.method.classes
    shown = names if mask is None else [names[int(i)] for i in mask]
    labels = dict(enumerate(shown))
    return PreTrainedConfig(id2label=labels, label2id={name: i for i, name in labels.items()})
