"""`navia.pipeline`: an adapter in the `image-classification` pipeline of transformers."""

from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from navia.errors import SpecError, import_optional
from navia.models.labels import class_names

if TYPE_CHECKING:
    from transformers import ImageClassificationPipeline

    from navia.adaptation.adapter import Adapter


def pipeline(adapter: "Adapter", *, adapt: bool = True, **options: Any) -> "ImageClassificationPipeline":
    """A transformers pipeline that predicts with `adapter`. The model may be of any supported library.

    Each batch is one adaptation step, so use batch_size=16 or more: by default the pipeline makes batches of one image.

    Args:
        adapter: Predicts and adapts. Images are prepared by `vit.preprocessing`.
        adapt: Adapt to every batch after its prediction; False: predict only.
        **options: Options of the pipeline, such as batch_size and top_k.

    Returns:
        The pipeline.

    Example:
        >>> from navia.data import sample
        >>> adapter = navia.adapt("embedded", method="tent")
        >>> classifier = navia.pipeline(adapter, batch_size=16, top_k=1)
        >>> predictions = classifier([sample.unseen_images().read(i) for i in range(16)])
        >>> len(predictions), adapter.steps
        (16, 1)
    """
    transformers = import_optional("transformers", "the pipeline", "pip install 'navia[hf]'")
    fixed = [name for name in ("model", "image_processor", "device") if name in options]
    if fixed:
        raise SpecError(f"{', '.join(fixed)} come(s) from the adapter: use navia.load(model, preprocessing=...).to(device)")

    vit, classes = adapter.source_vit, adapter.classes
    names = class_names(vit) or [f"LABEL_{i}" for i in range(vit.num_classes)]
    labels = dict(enumerate(names if classes is None else [names[int(i)] for i in classes]))
    config = transformers.PreTrainedConfig(id2label=labels, label2id={name: i for i, name in labels.items()})

    class AdaptingPipeline(transformers.ImageClassificationPipeline):  # type: ignore[misc, name-defined]
        def check_model_type(self, supported_models: object) -> None:
            """Accept the adapter, which is no class of transformers."""

    def processor(images: Any, return_tensors: str = "pt") -> Any:
        several = images if isinstance(images, list | tuple) else [images]
        return transformers.BatchFeature({"pixel_values": vit.preprocessing.batch(several)})

    return transformers.pipeline(
        "image-classification",
        model=PipelineModel(adapter, config, adapt),
        image_processor=processor,
        pipeline_class=AdaptingPipeline,
        device=vit.device,
        **options,
    )


class PipelineModel(nn.Module):
    """The parts of a model that a pipeline uses: `config`, `device`, `dtype`, and an output with `logits`."""

    def __init__(self, adapter: "Adapter", config: Any, adapt: bool) -> None:
        super().__init__()
        self.predict = adapter if adapt else adapter.predict
        self.config = config
        self.device, self.dtype = adapter.source_vit.cls_token.device, adapter.source_vit.cls_token.dtype

    def forward(self, pixel_values: Tensor) -> Any:
        from transformers.modeling_outputs import ImageClassifierOutput

        return ImageClassifierOutput(logits=self.predict(pixel_values))
