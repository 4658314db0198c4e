"""logits -> loss -> update: losses, source statistics, guard, and one file per method.

`navia.adapt` is both this folder and the function that makes an adapter. Python binds a package's name to the folder as
soon as anything inside is imported, so the folder itself must be callable.
"""

import sys
from types import ModuleType
from typing import Any


class _CallableFolder(ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        from navia.adapt.adapter import adapt

        return adapt(*args, **kwargs)


sys.modules[__name__].__class__ = _CallableFolder
