"""The versioned record of one episode: token segments, calls, outcome, and what made it. One JSON object a line.

An episode is prompt | sampled | framing | observation | framing | sampled ... Sampled ids are kept exactly as sampled and are never
tokenized again; text is decoded only to parse and to read. The loss mask is 1 exactly on sampled segments.
"""

import dataclasses
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal

from agentrl.evidence.errors import StudyError
from agentrl.tasks.environment import Call, Outcome

VERSION = 2
"""2: `Call.error` names every kind of malformed call, `Outcome.workflow` follows the rules of `protocol.success`, thinking ends at the last
`</think>`. The same ids can mean something else in version 1."""
TRAINING = "train"
"""The split whose episodes are trained on."""
SegmentKind = Literal["prompt", "sampled", "framing", "observation"]
Finish = Literal["stop", "length"]


class RecordError(StudyError, ValueError):
    """A record file is damaged or of another version; the message names file, line and what was expected."""


@dataclass(frozen=True)
class Segment:
    """A run of token ids of one origin."""

    kind: SegmentKind
    ids: list[int]
    logprobs: list[float] | None = None
    """Sampled segments: log-probability of each id under the temperature-scaled, untruncated policy, in nats."""
    finish: Finish | None = None
    """Sampled segments: whether the turn ended itself or was cut by the budget."""


@dataclass(frozen=True)
class Key:
    """Identity of one episode, and through `stream` everything its randomness depends on."""

    policy: str
    """`baseline` or `{arm}/seed-{seed}`."""
    step: int
    """Optimizer steps the sampling policy had taken."""
    split: str
    task: str
    trial: int
    """Repetition of the same task under the same policy; in training the index inside the group."""
    seed: int
    """`decoding.seed` in evaluation, the training seed in training."""

    def stream(self, turn: int) -> tuple[str | int, ...]:
        """Key of the random stream (`seeding.stream`) that a turn of this episode is sampled from: the one definition.

        Training tasks: the policy's step is part of it, so that a task seen again is sampled anew, and a preflight at step 0 sees what
        training would. Every other split: neither policy nor step, so that the start and every candidate draw the same numbers in the same
        item, trial and turn. What differs between them is then the policy, and an unchanged policy differs in no id.

        Args:
            turn: the policy's own turns before this one.
        """
        if self.split == TRAINING:
            return ("episode", self.seed, self.step, self.task, self.trial, turn)
        return ("evaluation", self.seed, self.task, self.trial, turn)


@dataclass(frozen=True)
class Trajectory:
    """One finished episode."""

    key: Key
    segments: list[Segment]
    calls: list[Call]
    outcome: Outcome
    engine: str
    """Name of the engine that sampled it."""
    reward: float | None = None
    """Training only: the reward of the arm."""
    advantage: float | None = None
    """Training only: group-relative advantage the loss was given."""
    loss_runs: list[list[int]] | None = None
    """Training only: the loss mask as TRL held it when the loss was computed, as [value, length] runs over the completion."""
    version: int = field(default=VERSION)

    @property
    def prompt_ids(self) -> list[int]:
        """Ids of the prompt."""
        return self.segments[0].ids

    @property
    def completion_ids(self) -> list[int]:
        """Every id behind the prompt."""
        return [token for segment in self.segments[1:] for token in segment.ids]

    @property
    def loss_mask(self) -> list[int]:
        """1 for sampled, 0 for external ids, aligned with `completion_ids`."""
        return [
            int(segment.kind == "sampled") for segment in self.segments[1:] for _ in segment.ids
        ]

    @property
    def sampled(self) -> list[Segment]:
        """The policy's own segments, one a turn."""
        return [segment for segment in self.segments if segment.kind == "sampled"]

    def to_json(self) -> dict[str, Any]:
        """Plain data; fields that do not apply are left out."""
        data = dataclasses.asdict(self)
        data["segments"] = [
            {k: v for k, v in segment.items() if v is not None} for segment in data["segments"]
        ]
        return {k: v for k, v in data.items() if v is not None}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Trajectory":
        """Inverse of `to_json`. Raises KeyError or TypeError on missing or unknown fields."""
        if data["version"] != VERSION:
            raise TypeError(f"record version {data['version']}, this code reads version {VERSION}")
        rest = {k: v for k, v in data.items() if k not in ("key", "segments", "calls", "outcome")}
        segments = [Segment(**segment) for segment in data["segments"]]
        calls = [Call(**call) for call in data["calls"]]
        return cls(
            key=Key(**data["key"]),
            segments=segments,
            calls=calls,
            outcome=Outcome(**data["outcome"]),
            **rest,
        )


def append(stream: IO[str], trajectories: Iterable[Trajectory]) -> None:
    """Write records and force them to disk: evidence is written as it arises."""
    for trajectory in trajectories:
        stream.write(json.dumps(trajectory.to_json(), separators=(",", ":"), sort_keys=True) + "\n")
    stream.flush()
    os.fsync(stream.fileno())


def read(path: str | Path) -> Iterator[Trajectory]:
    """Records of a file, in order. Raises `RecordError` naming file, line and defect."""
    with open(path, "rb") as stream:
        for number, line in enumerate(stream, 1):
            try:
                if not line.endswith(b"\n"):
                    raise ValueError("line is not terminated: the file is truncated")
                trajectory = Trajectory.from_json(json.loads(line.decode("utf-8")))
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                raise RecordError(
                    f"{path}, line {number}: not a trajectory record ({error!r}); rerun the stage that wrote it"
                ) from None
            yield trajectory
