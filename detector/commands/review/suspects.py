"""stub"""

from typing import Any


def find_suspects(*a: Any) -> Any:
    return [], []
