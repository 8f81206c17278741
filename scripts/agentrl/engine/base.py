"""The engine interface: contexts, budgets and row seeds in; sampled ids, log-probabilities and finish reason out.

An engine never sees tasks, tools or rewards. A request that cannot be served is an `EngineError`, which ends the stage: it is never
turned into a score.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

RowKey = tuple[str | int, ...]
"""What a row's randomness depends on: ("episode", seed, policy step, task, trial, turn). Never on its neighbours."""


class EngineError(RuntimeError):
    """The engine or its device failed."""


@dataclass(frozen=True)
class Request:
    """One row: continue `context` by at most `max_tokens` ids."""

    context: list[int]
    max_tokens: int
    key: RowKey


@dataclass(frozen=True)
class Sample:
    """What one row sampled, its stop id included."""

    ids: list[int]
    logprobs: list[float]
    """Nats under the temperature-scaled, untruncated distribution: what the trainer computes for the same ids."""
    finish: Literal["stop", "length"]


class Engine(Protocol):
    """Anything that samples."""

    name: str

    def generate(self, requests: Sequence[Request]) -> list[Sample]:
        """Sample every request as one batch; results in request order. Raises `EngineError`."""
        ...

    def describe(self) -> dict[str, Any]:
        """Engine, versions, dtype and device, for the provenance."""
        ...
