"""The shipped configurations as plain data, and how tests change them."""

from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from agentrl.evidence.section import ConfigError
from agentrl.study.config import validate_study
from agentrl.study.strictyaml import read_yaml

ROOT = Path(__file__).resolve().parents[1]
MAIN, OVERRIDES = ROOT / "config.yaml", ROOT / "profiles/demo/study.yaml"
PILOT_RAW, DEMO_RAW = read_yaml(MAIN), read_yaml(MAIN, OVERRIDES)
Key = tuple[str, ...]


def put(raw: dict[str, Any], path: str | Key, value: object) -> dict[str, Any]:
    """A copy of `raw` with one key set."""
    out = deepcopy(raw)
    *parents, last = path.split(".") if isinstance(path, str) else path
    inner = out
    for name in parents:
        inner = inner.setdefault(name, {})
    inner[last] = value
    return out


def get(raw: dict[str, Any], path: Key) -> Any:
    for name in path:
        raw = raw[name]
    return raw


def leaves(raw: dict[str, Any], path: Key = ()) -> Iterator[Key]:
    for key, value in raw.items():
        yield from (
            leaves(value, (*path, key))
            if isinstance(value, dict) and value
            else iter([(*path, key)])
        )


def refusal(raw: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        validate_study(raw)
    return str(caught.value)
