"""The present state of an adapter as a plain module (images -> logits), and the metadata that exported files contain."""

import json
from collections.abc import Mapping
from typing import Any, cast

from pydantic import BaseModel, ConfigDict
from torch import Tensor, nn

from navia import __version__
from navia.adaptation.adapter import Adapter
from navia.data.preprocessing import Preprocessing
from navia.errors import NaviaError
from navia.methods.parameters import fingerprint, is_half, private_copy
from navia.models.forward import TokenEdits, forward
from navia.models.labels import class_names

METADATA_FILE = "navia.json"  # in a .pt2 archive and in an exported folder
_PREFIX = "navia."  # of metadata keys in formats that store pairs of strings


class ExportError(NaviaError):
    """An adapter that cannot be exported, or an exported file whose logits differ from the adapter's."""


class FrozenModel(nn.Module):
    """What `adapter.predict` computes in its present state, on the CPU: the forward with the method's edits as buffers.

    Raises:
        ExportError: A prediction depends on the other images of its batch, or the weights are in half precision.
    """

    cls_shift: Tensor | None
    prompts: Tensor | None
    head_shift: Tensor | None
    classes: Tensor | None

    def __init__(self, adapter: Adapter) -> None:
        super().__init__()
        if not adapter.method.per_image:
            raise ExportError(
                f"method {adapter.method_name!r} corrects the predictions of a batch by one another, so a prediction depends"
                " on more than its image: export method 'none' and correct its predictions"
            )
        if is_half(adapter.vit):
            dtype = str(adapter.vit.dtype).removeprefix("torch.")
            raise ExportError(f"the model's weights are {dtype}: only float32 models are exported; adapt it in float32")
        if adapter.vit.precision != "float32":
            raise ExportError(
                f"the adapter computes in {adapter.vit.precision}, and exported models in float32: save its delta, load it "
                "into an adapter of the float32 model, and export that one"
            )
        edits = adapter.prediction_edits()
        self.vit, self.reduce = private_copy(adapter.prediction_vit, []), adapter.reduce
        self.bias_position = edits.bias_position
        self.biased_blocks = tuple(sorted(edits.cls_bias))
        tensors = {"cls_shift": edits.cls_shift, "prompts": edits.prompts, "head_shift": edits.head_shift}
        tensors |= {f"cls_bias_{block}": edits.cls_bias[block] for block in self.biased_blocks}
        for name, value in {**tensors, "classes": adapter.classes}.items():  # torch.export miscounts buffers that are None
            setattr(self, name, None if value is None else nn.Buffer(value.detach().clone()))
        self.cpu().eval()

    @property
    def edits(self) -> TokenEdits:
        cls_bias = {block: cast(Tensor, getattr(self, f"cls_bias_{block}")) for block in self.biased_blocks}
        return TokenEdits(self.cls_shift, cls_bias, self.bias_position, self.prompts, self.head_shift)

    def forward(self, images: Tensor) -> Tensor:
        return forward(self.vit, images, self.reduce, edits=self.edits, classes=self.classes).logits


class Metadata(BaseModel):
    """The description inside an exported file."""

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="constants")

    model: str
    library: str
    weights: str  # hash of the source model's weights
    method: str
    options: dict[str, Any]
    reduce: str
    steps: int  # of adaptation
    preprocessing: Preprocessing  # preprocessing(image) is the model's input
    classes: tuple[int, ...] | None  # class indices of the model in the order of the logits; None: all
    labels: tuple[str, ...] | None  # class names in the order of the logits; None: unknown
    version: str = __version__

    @classmethod
    def of(cls, adapter: Adapter) -> "Metadata":
        vit, names = adapter.source_vit, class_names(adapter.source_vit)
        classes = None if adapter.classes is None else tuple(adapter.classes.tolist())
        return cls(
            model=vit.name,
            library=vit.library,
            weights=fingerprint(vit),
            method=adapter.method_name,
            options=json.loads(json.dumps(vars(adapter.options), default=str)),
            reduce=str(adapter.reduce),
            steps=adapter.steps,
            preprocessing=vit.preprocessing,
            classes=classes,
            labels=names if names is None or classes is None else tuple(names[i] for i in classes),
        )

    def as_strings(self) -> dict[str, str]:
        """Pairs of strings for ONNX and safetensors: texts as they are, other values as JSON."""
        pairs = self.model_dump(mode="json").items()
        return {_PREFIX + key: value if isinstance(value, str) else json.dumps(value) for key, value in pairs}

    @classmethod
    def from_strings(cls, pairs: Mapping[str, str]) -> "Metadata":
        texts = {name for name, field in cls.model_fields.items() if field.annotation is str}
        own = {key.removeprefix(_PREFIX): value for key, value in pairs.items() if key.startswith(_PREFIX)}
        return cls.model_validate({key: value if key in texts else json.loads(value) for key, value in own.items()})
