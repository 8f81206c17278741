"""Warm-up of an arm: a short supervised training of its LoRA on expert trajectories of training tasks, before GRPO starts.

The reference of GRPO's KL term stays the start policy (adapter off). The demonstrations are evidence: verification replays each of them.
"""

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

from agentrl.evidence.errors import StudyError
from agentrl.policy import adapter
from agentrl.policy.settings import Model
from agentrl.rollout.chat import ChatProtocol
from agentrl.rollout.settings import Protocol
from agentrl.rollout.trajectory import Trajectory
from agentrl.tasks.families import Task
from agentrl.training import expert, supervised
from agentrl.training.settings import TrainingSettings, Warmup


class WarmupError(StudyError, RuntimeError):
    """The warm-up cannot teach what it should; the message names task and reason."""


def demonstrate(
    tasks: Sequence[Task], chat: ChatProtocol, protocol: Protocol, policy: str, seed: int
) -> list[Trajectory]:
    """One strict success per training task. Raises `WarmupError` for a task of another split, or one that the protocol cuts short."""
    if wrong := [task.id for task in tasks if task.split != "train"]:
        raise WarmupError(
            f"task {wrong[0]}: demonstrations are made of training tasks only, so that dev and test stay unseen"
        )
    rng = Random(f"warm-up/{seed}")
    played = expert.play(
        tasks, {task.id: expert.script(task, rng) for task in tasks}, chat, protocol, policy, seed
    )
    if failed := [episode for episode in played if not episode.outcome.strict]:
        raise WarmupError(
            f"task {failed[0].key.task}: the expert's episode ended with {failed[0].outcome.end!r} after "
            f"{len(failed[0].completion_ids)} tokens; protocol.budget ({protocol.budget}) must leave room for it"
        )
    return played


def train(
    model: Any, chat: ChatProtocol, played: Sequence[Trajectory], warmup: Warmup, settings: TrainingSettings, device: Model, seed: int,
    work: Path,
) -> tuple[Any, list[dict[str, Any]]]:  # fmt: skip
    """Teach the demonstrations to a new LoRA of the arm's own shape; the adapted model and its loss log."""
    adapted = adapter.with_lora(model.train(), settings.lora, seed)
    found = [supervised.example(episode) for episode in played]
    log = supervised.train(
        adapted, chat.tokenizer, found, warmup, seed, work,
        use_cpu=device.device == "cpu", bf16=device.dtype == "bfloat16",
        **({"gradient_checkpointing": True} if settings.gradient_checkpointing else {}),
    )  # fmt: skip
    return adapted, log
