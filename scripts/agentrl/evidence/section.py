"""Validated sections: strict types, no unknown keys, errors by key path. Each wing's `settings.py` builds on it."""

import json
import textwrap
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agentrl.evidence.errors import StudyError

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$")]
Positive = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=0, le=2**32 - 1)]
Share = Annotated[float, Field(ge=0, le=1)]
Rate = Annotated[float, Field(gt=0)]


class ConfigError(StudyError, ValueError):
    """The configuration cannot be used; the message says which key, what was found, what was expected."""


class Section(BaseModel):
    """Base of every section: strict types, no unknown keys, immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    @classmethod
    def part(cls, content: Mapping[str, Any]) -> dict[str, Any]:
        """Of a larger section's plain data, what this one has too."""
        return {name: content[name] for name in cls.model_fields}


T = TypeVar("T", bound=Section)


def validate(raw: Mapping[str, Any], model: type[T], origin: str = "config") -> T:
    """Validate plain data. Raises `ConfigError` with one line per offending key path."""
    try:
        return model.model_validate_json(json.dumps(raw))
    except TypeError as error:  # a YAML tag such as !!set or !!timestamp
        raise ConfigError(
            f"{origin} is not valid: {error}; use mappings, lists, strings, numbers, true, false and null"
        ) from None
    except ValidationError as error:
        lines = [f"  {_path(e['loc'])}: {_message(e)}" for e in _innermost(error.errors())]
        raise ConfigError("\n".join([f"{origin} is not valid:", *lines])) from None


def _innermost(errors: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Without errors that only follow from one inside: pydantic calls a list whose items are refused too short as well."""
    places = [error["loc"] for error in errors]
    return [
        e
        for e in errors
        if not any(len(p) > len(e["loc"]) and p[: len(e["loc"])] == e["loc"] for p in places)
    ]


def _path(loc: tuple[int | str, ...]) -> str:
    return ".".join(str(part) for part in loc if part != "[key]") or "(top)"


def _message(error: Mapping[str, Any]) -> str:
    if error["type"] == "missing":
        return "missing; config.yaml shows every key"
    if error["type"] == "value_error":  # raised above, names its values itself
        return str(error["msg"]).removeprefix("Value error, ")
    found = textwrap.shorten(json.dumps(error["input"], ensure_ascii=False), 80)
    if error["type"] == "extra_forbidden":
        return f"unknown key (found {found}); check its spelling against config.yaml"
    return f"{error['msg']} (found {found})"


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Deep merge of mappings; anything else above replaces what is below."""
    out = dict(below)
    for key, value in above.items():
        both = isinstance(value, Mapping) and isinstance(out.get(key), Mapping)
        out[key] = merge(out[key], value) if both else value
    return out
