"""The first place where two pieces of plain data differ, so that a refusal can name it."""

from collections.abc import Mapping
from typing import Any

ABSENT = "nothing"
"""Stands for a value that one side lacks."""


def first_difference(expected: Any, found: Any, path: str = "") -> tuple[str, Any, Any] | None:
    """(dotted key path, expected, found) of the first unequal value in key order, or None. Lists differ as a whole."""
    if not (isinstance(expected, Mapping) and isinstance(found, Mapping)):
        return None if expected == found else (path, expected, found)
    for key in sorted({*expected, *found}):
        inner = f"{path}.{key}" if path else str(key)
        if (
            place := first_difference(expected.get(key, ABSENT), found.get(key, ABSENT), inner)
        ) is not None:
            return place
    return None
