"""Adaptation methods, one file each; `base` has what they share, `features` the moments and losses."""

import sys
import warnings
from types import ModuleType


class _CallableModule(ModuleType):
    """Keeps the deprecated `navia.methods()` working, which has the name of this package, for one release."""

    def __call__(self) -> list[str]:
        import navia

        warnings.warn("navia.methods() is now navia.list_methods()", DeprecationWarning, stacklevel=2)
        return navia.list_methods()


sys.modules[__name__].__class__ = _CallableModule
