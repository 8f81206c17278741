"""Preflight: what the start policy does on a few training tasks before any GPU hour is spent, and which arms could learn from it.

GRPO learns from groups whose rewards differ. Groups are sampled from the start policy as training would sample them at step 0; an arm
under whose reward no group differs is refused by name (the pilot found that for the binary reward). A random reward is exempt: it varies
by design; so is an arm with a warm-up: what its first group will be is not what the start policy says. Only training tasks are touched.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agentrl.evaluation.agent import batched_list, measures
from agentrl.evidence.errors import StudyError
from agentrl.rollout.loop import Rollout
from agentrl.rollout.sampler import rows_at_once
from agentrl.rollout.trajectory import Key, Trajectory
from agentrl.tasks.families import Task
from agentrl.training.reward import REWARDS
from agentrl.training.settings import Arm, Preflight, Reward, TrainingSettings

POLICY = "baseline"
"""The start policy's name in the records."""
EXEMPT = "random"


class PreflightError(StudyError, RuntimeError):
    """An arm could not learn; the message names it and what to change."""


def keys(tasks: Sequence[Task], section: Preflight, seed: int) -> list[tuple[Task, Key]]:
    """Episodes to play: the first `groups` training tasks, each `group_size` times in a row."""
    return [
        (task, Key(POLICY, 0, task.split, task.id, trial, seed))
        for task in tasks[: section.groups]
        for trial in range(section.group_size)
    ]


def play(
    rollout: Rollout, tasks: Sequence[Task], section: Preflight, batch_size: int, seed: int
) -> Iterator[list[Trajectory]]:
    """Play the groups in batches of training's shape. Raises `PreflightError` for a task that is not for training."""
    if wrong := [task.id for task in tasks if task.split != "train"]:
        raise PreflightError(
            f"task {wrong[0]}: preflight samples training tasks only, so that dev and test stay unseen"
        )
    for batch in batched_list(keys(tasks, section, seed), rows_at_once(rollout.engine, batch_size)):
        yield rollout.play([task for task, _ in batch], [key for _, key in batch])


def report(episodes: Sequence[Trajectory], section: Preflight, weights: Reward) -> dict[str, Any]:
    """Counts over the episodes (as an evaluation's), and mixed groups under every reward an arm could have."""
    mixed = {
        name: mixed_groups(episodes, name, section.group_size, section.group_size, weights)
        for name in REWARDS
    }
    counts = measures(episodes, section.groups * section.group_size)
    return {
        "groups": section.groups,
        "group_size": section.group_size,
        "counts": counts,
        "mixed_groups": mixed,
    }


def mixed_groups(
    episodes: Sequence[Trajectory], reward: str, sampled: int, group_size: int, weights: Reward
) -> int:
    """Groups whose first `group_size` of `sampled` episodes differ in reward."""
    groups = [episodes[start : start + group_size] for start in range(0, len(episodes), sampled)]
    return sum(
        len({REWARDS[reward](weights, episode) for episode in group}) > 1 for group in groups
    )


def verdict(
    episodes: Sequence[Trajectory],
    name: str,
    arm: Arm,
    section: Preflight,
    base: TrainingSettings,
    weights: Reward,
) -> dict[str, Any]:
    """Whether an arm could learn, with the group size it would train with. Raises `PreflightError` where no group is mixed."""
    size = arm.settings(base).group_size
    mixed = mixed_groups(episodes, arm.reward, section.group_size, size, weights)
    if mixed == 0 and arm.reward != EXEMPT and arm.warmup is None:
        counts = measures(episodes, section.groups * section.group_size)
        raise PreflightError(
            f"arm {name!r} could not learn: none of {section.groups} groups of {size} had reward variation under its {arm.reward} reward "
            f"({counts['strict_success']} of {counts['episodes']} episodes succeeded strictly, {counts['lookup']} looked up, "
            f"{counts['calculation']} calculated); ease the task, raise decoding.temperature, arms.{name}.training.group_size or "
            f"preflight.groups, or take arms.{name} out of the configuration"
        )
    return {
        "arm": name,
        "reward": arm.reward,
        "groups": section.groups,
        "group_size": size,
        "mixed_groups": mixed,
    }


def rates(found: Mapping[str, Any]) -> str:
    """One line about a preflight's report."""
    counts = found["counts"]
    shares = ", ".join(
        f"{name} {counts[name]}"
        for name in ("strict_success", "lookup", "calculation", "token_cap", "turn_cap")
    )
    mixed = ", ".join(f"{name} {number}" for name, number in found["mixed_groups"].items())
    return f"preflight: {counts['episodes']} episodes ({shares}); mixed groups of {found['groups']}: {mixed}"
