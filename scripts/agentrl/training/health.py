"""Health gates of a training run: a run that exits 0 but learned from nothing, or left the adapter untouched, has failed."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agentrl.evidence.errors import StudyError
from agentrl.rollout.trajectory import Trajectory
from agentrl.training.settings import TrainingSettings

EPSILON = 1e-4
"""TRL's guard in `advantage = (reward - mean) / (std + 1e-4)` (GRPOTrainer, scale_rewards="group")."""
RATIO_BOUNDS = (0.5, 2.0)
"""Where the ratio of the trainer's to the sampler's probability counts as the same policy's, for a token and for a step's mean.

The mean is 1 where both compute one distribution. Log-probabilities behind top-k and top-p, compared with the trainer's, gave 4.2 nats a
token, a ratio of .015, and a run of zero gradients without a word."""
ROUNDING = 1e-6
"""Largest float32 error of a reward in [0, 1] minus its group's mean; observed 1.2e-7 for groups of 2 to 16."""


class HealthError(StudyError, RuntimeError):
    """A health gate failed; the message says which and at which step."""


@dataclass(frozen=True)
class StepRecord:
    """What one optimizer step trained on and what came of it."""

    step: int
    """Optimizer steps after this one."""
    episodes: int
    tasks: list[str]
    mixed_groups: int
    """Groups whose rewards differ: only they carry a reward gradient."""
    mean_reward: float
    strict: int
    """Episodes with strict success; reported beside the reward, never mixed with it."""
    loss: float = 0.0
    grad_norm: float = 0.0
    """Before clipping."""
    kl: float = 0.0
    """Mean estimated KL from the start policy, nats per token."""
    sampled_tokens: int = 0
    """Tokens that the policy sampled: the ones below are over these."""
    gap_mean: float = 0.0
    """Mean absolute difference of the sampler's and the trainer's log-probability, nats."""
    gap_max: float = 0.0
    ratio_mean: float = 1.0
    """Mean of trainer's over sampler's probability. A diagnosis: no correction is applied (`grpo`)."""
    ratio_outside: float = 0.0
    """Share of tokens whose ratio is outside `RATIO_BOUNDS`."""

    @classmethod
    def of(cls, episodes: Sequence[Trajectory], group_size: int) -> "StepRecord":
        """Counts of one batch whose groups lie in consecutive rows."""
        rewards = [episode.reward or 0.0 for episode in episodes]
        groups = [
            rewards[start : start + group_size] for start in range(0, len(rewards), group_size)
        ]
        return cls(
            step=episodes[0].key.step + 1,
            episodes=len(episodes),
            tasks=[episode.key.task for episode in episodes[::group_size]],
            mixed_groups=sum(len(set(group)) > 1 for group in groups),
            mean_reward=round(sum(rewards) / len(rewards), 6),
            strict=sum(episode.outcome.strict for episode in episodes),
            sampled_tokens=sum(
                len(segment.ids) for episode in episodes for segment in episode.sampled
            ),
        )


def sampler_gap(sampler: Sequence[float], trainer: Sequence[float]) -> dict[str, float]:
    """How far apart two sets of log-probabilities of the same tokens are: the fields of `StepRecord`.

    Args:
        sampler: nats, as the engine recorded them.
        trainer: nats, as the loss computed them.
    """
    gaps = [theirs - ours for ours, theirs in zip(sampler, trainer, strict=True)]
    ratios = [
        math.exp(min(gap, 50.0)) for gap in gaps
    ]  # beyond it only the size of the alarm would change
    low, high = RATIO_BOUNDS
    return {
        "gap_mean": round(statistics.fmean(map(abs, gaps)), 6),
        "gap_max": round(max(map(abs, gaps)), 6),
        "ratio_mean": round(statistics.fmean(ratios), 6),
        "ratio_outside": round(sum(not low <= ratio <= high for ratio in ratios) / len(ratios), 6),
    }


def check_ratio(record: StepRecord) -> None:
    """Refuse a step whose sampler was not the policy that was trained. Raises `HealthError`."""
    low, high = RATIO_BOUNDS
    if not low <= record.ratio_mean <= high:  # NaN compares false
        raise HealthError(
            f"step {record.step}: over {record.sampled_tokens} sampled tokens the trainer gives {record.ratio_mean:.3g} times the "
            f"sampler's probability on average, expected {low} to {high} (mean difference {record.gap_mean:.3g} nats): "
            "the engine sampled from another policy than the one in training, or its log-probabilities are another distribution's"
        )


def group_advantages(rewards: Sequence[float], settings: TrainingSettings) -> list[float]:
    """Group-relative advantages: reward minus group mean, over the group's sample standard deviation if `scale_rewards` is `group`.

    Source: Shao et al. 2024 (arXiv 2402.03300), with TRL's epsilon.
    """
    groups = _groups(rewards, settings)
    return [
        (reward - sum(group) / len(group)) / _scale(group, settings)
        for group in groups
        for reward in group
    ]


def advantage_tolerances(rewards: Sequence[float], settings: TrainingSettings) -> list[float]:
    """By how much TRL's float32 advantages may differ from `group_advantages`.

    The scale divides the rounding too: three rewards of 0.85 have a float32 mean 6e-8 off, which the epsilon alone makes 6e-4.
    """
    return [
        ROUNDING / _scale(group, settings) + ROUNDING * len(group)
        for group in _groups(rewards, settings)
        for _ in group
    ]


def _groups(rewards: Sequence[float], settings: TrainingSettings) -> list[Sequence[float]]:
    return [
        rewards[start : start + settings.group_size]
        for start in range(0, len(rewards), settings.group_size)
    ]


def _scale(group: Sequence[float], settings: TrainingSettings) -> float:
    return statistics.stdev(group) + EPSILON if settings.scale_rewards == "group" else 1.0


def signal(record: StepRecord, moved: bool, settings: TrainingSettings) -> bool:
    """Whether a step's batch must give a nonzero gradient: a group varies, or the KL term pulls on a policy that left its reference.

    A policy has left it behind any earlier gradient, and wherever its KL is not 0: a warmed-up one at step 1. Else, at step 1, the KL
    term's gradient is exactly 0, so that an unmixed first group gives none.
    """
    return record.mixed_groups > 0 or (settings.kl > 0 and (moved or record.kl > 0))


def gates(
    steps: Sequence[StepRecord], tensors: int, unchanged: Sequence[str], settings: TrainingSettings
) -> dict[str, Any]:
    """Check a finished run.

    Args:
        steps: every optimizer step in order.
        tensors: how many the adapter has.
        unchanged: names of adapter tensors that equal their initial value.
        settings: number of steps, weight of the KL term.

    Returns:
        The run's counts and, under `gates`, the numbers that each gate looked at. Raises `HealthError` at the first gate that fails.
    """
    numbers = [record.step for record in steps]
    if numbers != list(range(1, settings.steps + 1)):
        raise HealthError(
            f"step records are {numbers[:3]}..{numbers[-1:]}, expected 1..{settings.steps}: evidence is incomplete"
        )
    mixed = sum(record.mixed_groups for record in steps)
    if mixed == 0:
        raise HealthError(
            "no group had reward variation: there was nothing to learn from; ease the task or raise the temperature"
        )
    moved = False
    demanded: list[float] = []
    for record in steps:
        if not all(map(math.isfinite, (record.loss, record.grad_norm, record.kl))):
            raise HealthError(
                f"step {record.step}: loss {record.loss}, gradient norm {record.grad_norm}, KL {record.kl}: not finite"
            )
        if signal(record, moved, settings):
            demanded.append(record.grad_norm)
            if not record.grad_norm > 0:
                raise HealthError(
                    f"step {record.step}: the gradient is {record.grad_norm} although the batch carries a signal"
                )
        check_ratio(record)
        moved = moved or record.grad_norm > 0
    if unchanged or tensors == 0:
        first = f", first {unchanged[0]}" if unchanged else ""
        raise HealthError(f"{len(unchanged)} of {tensors} adapter tensors did not change{first}")
    groups = sum(len(record.tasks) for record in steps)
    episodes = sum(record.episodes for record in steps)
    return {
        "steps": len(steps),
        "episodes": episodes,
        "unique_tasks": len({task for record in steps for task in record.tasks}),
        "groups": groups,
        "mixed_groups": mixed,
        "mean_reward": round(sum(r.mean_reward * r.episodes for r in steps) / episodes, 6),
        "strict_success": sum(record.strict for record in steps),
        "gap_max": max(record.gap_max for record in steps),
        "gates": {
            "mixed_groups": mixed,
            "steps_finite": len(steps),
            "steps_with_signal": len(demanded),
            "steps_with_gradient": sum(record.grad_norm > 0 for record in steps),
            "smallest_gradient_with_signal": min(demanded),
            "ratio_mean_low": min(record.ratio_mean for record in steps),
            "ratio_mean_high": max(record.ratio_mean for record in steps),
            "adapter_tensors": tensors,
            "adapter_tensors_changed": tensors - len(unchanged),
        },
    }
