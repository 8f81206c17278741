"""Training reward: shaped milestones, strict success alone, or the placebo's coin. Success is decided elsewhere (`environment.judge`)."""

from agentrl.rollout.seeding import uniform
from agentrl.rollout.trajectory import Trajectory
from agentrl.tasks.environment import Outcome
from agentrl.training.settings import Reward


def shaped(outcome: Outcome, weights: Reward) -> float:
    """Sum of the reached milestones minus the price of tool errors, clipped to [0, 1]."""
    total = (
        weights.lookup * outcome.lookup
        + weights.calculation * outcome.calculation
        + weights.strict * outcome.strict
        - weights.tool_error * outcome.tool_errors
    )
    return min(1.0, max(0.0, total))


def shaped_reward(weights: Reward, episode: Trajectory) -> float:
    """Arm reward `shaped`."""
    return shaped(episode.outcome, weights)


def random_reward(weights: Reward, episode: Trajectory) -> float:  # noqa: ARG001 - one signature for every arm
    """Arm reward `random`, the placebo: a fair coin, 0.0 or 1.0, keyed like the episode's own sampling but on a stream of its own."""
    key = episode.key
    return float(uniform("placebo", key.seed, key.step, key.task, key.trial) < 0.5)


def binary_reward(weights: Reward, episode: Trajectory) -> float:  # noqa: ARG001 - one signature for every arm
    """Arm reward `binary`: strict success, 0.0 or 1.0, without milestones or a price of errors."""
    return float(episode.outcome.strict)


REWARDS = {"shaped": shaped_reward, "random": random_reward, "binary": binary_reward}
"""Reward of an arm by its configured name."""
