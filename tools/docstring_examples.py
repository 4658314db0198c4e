"""For mkdocs.yml: the section `Example:` of a docstring is rendered as code, as mkdocstrings does with `Examples:`."""

import re
from typing import Any

import griffe


class ExampleSections(griffe.Extension):
    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = re.sub(r"^Example:$", "Examples:", obj.docstring.value, flags=re.MULTILINE)
