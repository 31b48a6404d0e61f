"""YAML that users give."""

from typing import Any

import yaml

# What a loader raises for text that is no YAML, that its own tags do not fit (`!!bool x`), or that
# is nested too deep.
NO_YAML = (
    yaml.YAMLError,
    ValueError,
    KeyError,
    IndexError,
    AttributeError,
    TypeError,
    OverflowError,
    RecursionError,
)

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def load_yaml(text: str) -> Any:
    """The value that YAML text stands for: plain types.

    Raises:
        NO_YAML: it is none.
    """
    return yaml.load(text, Loader=_Loader)  # a safe one
