"""The engine interface: contexts, budgets and row seeds in; sampled ids, log-probabilities and finish reason out.

An engine never sees tasks, tools or rewards. A request that cannot be served is an `EngineError`, which ends the stage: it is never
turned into a score.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Protocol

from agentrl.evidence.errors import StudyError

RowKey = tuple[str | int, ...]
"""What a row's randomness depends on, and all of it (`trajectory.Key.stream`, `retention.stream_key`). Never on its neighbours."""


class EngineError(StudyError, RuntimeError):
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


Answer = Callable[[int, Sample], Request | None]
"""Takes a row's number and its newest sample; returns the row's next request, None once the row has ended."""


def serve(engine: Engine, requests: Sequence[Request], answer: Answer) -> None:
    """Sample rows until each has ended.

    An engine with a queue of its own gets a row's next request as soon as there is one, so that no row waits for another's turn.

    Raises:
        EngineError: the engine failed, or returned another number of samples.
    """
    getattr(engine, "serve", partial(serve_in_rounds, engine))(requests, answer)


def serve_in_rounds(engine: Engine, requests: Sequence[Request], answer: Answer) -> None:
    """`serve` for an engine without a queue: all unfinished rows together, one request each, in row order."""
    running = dict(enumerate(requests))
    while running:
        samples = engine.generate(list(running.values()))
        if len(samples) != len(running):
            raise EngineError(
                f"{engine.name} engine returned {len(samples)} samples for {len(running)} rows"
            )
        following = {row: answer(row, sample) for row, sample in zip(running, samples, strict=True)}
        running = {row: request for row, request in following.items() if request is not None}


def serve_once(engine: Engine, requests: Sequence[Request]) -> list[Sample]:
    """`generate` for an engine with a queue: one sample a row, in request order."""
    samples: dict[int, Sample] = {}
    serve(engine, requests, samples.__setitem__)
    return [samples[row] for row in range(len(requests))]


def rows_at_once(engine: Engine, batch_size: int) -> int:
    """How many rows to hand over together: the configured batch, or as many as an engine queues itself."""
    return max(batch_size, getattr(engine, "queue", 0))


def follow(engine: Engine, model: Any) -> None:
    """From now on sample from `model` as it is at this moment: called once per policy step. Raises `EngineError`."""
    update = getattr(engine, "follow", None)
    if update is not None:
        update(model)
    else:
        engine.model = model  # type: ignore[attr-defined]
