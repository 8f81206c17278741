"""The finished studies that the rerun suite changes, and what one change is."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from micro_study import ROOT
from rerun_expected import Design

from agentrl.study.strictyaml import read_yaml

MICRO, DEMO, CHOSEN = (
    Design(),
    Design(seeds=(21,), demo=True, warmed=("pilot",)),
    Design(chosen="pilot"),
)
MICRO_RAW = read_yaml(ROOT / "config.yaml", ROOT / "tests/micro.yaml")
WARMUP = {"steps": 2, "batch_size": 2, "learning_rate": 1e-3}


@dataclass(frozen=True)
class Change:
    """One change to a finished study and the jobs it must rerun."""

    name: str
    expected: set[str]
    config: Mapping[str, Any] | None = None
    """Merged over the study's configuration."""
    edit: Callable[[Path], object] | None = None
    """Done to a copy of the project."""
    base: str = "micro"
    """`micro`; `demo`: the faked study that makes its own start policy and warms an arm up; `chosen`: micro, where dev chose the arm."""
    environment: Mapping[str, str] | None = None
    """Variables on top of the environment."""

    def __str__(self) -> str:
        return self.name
