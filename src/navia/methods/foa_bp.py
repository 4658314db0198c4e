"""FOA-BP: FOA's fitness minimised by gradients on the LayerNorms, with its activation shift (Niu et al., 2024, appendix)."""

from dataclasses import dataclass

from navia.methods.align import Align, AlignOptions
from navia.methods.base import METHODS


@dataclass(frozen=True)
class FoaBpOptions(AlignOptions):
    """Options of align, with the activation shift on."""

    shift: bool = True


@METHODS.register("foa_bp")
class FoaBp(Align):
    """Align with FOA's activation shift."""

    name = "foa_bp"
    Options = FoaBpOptions
