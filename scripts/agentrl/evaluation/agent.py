"""Agent evaluation of one policy on one split: every task, every trial, in batches of one shape; and the counts that follow."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from agentrl.rollout.loop import Rollout
from agentrl.rollout.sampler import rows_at_once
from agentrl.rollout.trajectory import Key, Trajectory
from agentrl.tasks.families import Task


def episodes(
    rollout: Rollout,
    tasks: Sequence[Task],
    trials: int,
    batch_size: int,
    policy: str,
    step: int,
    seed: int,
) -> Iterator[list[Trajectory]]:
    """Play tasks x trials as one queue, one list of trajectories per batch.

    Args:
        rollout: engine and protocol of the policy.
        tasks: the frozen split.
        trials: repetitions of each task.
        batch_size: episodes at once, the same for every policy, because batch shape moves logits in the last bit; an engine with its own
            queue takes more (`rows_at_once`).
        policy: `baseline` or `{arm}/seed-{seed}`.
        step: optimizer steps the policy has taken; like `policy` it names the episodes and draws nothing (`Key.stream`).
        seed: `decoding.seed`.
    """
    queue = [
        (task, Key(policy, step, task.split, task.id, trial, seed))
        for trial in range(trials)
        for task in tasks
    ]
    for batch in batched_list(queue, rows_at_once(rollout.engine, batch_size)):
        yield rollout.play([task for task, _ in batch], [key for _, key in batch])


def batched_list(rows: Sequence[Any], size: int) -> Iterator[list[Any]]:
    """Consecutive slices of at most `size` rows."""
    return (list(rows[start : start + size]) for start in range(0, len(rows), size))


def measures(trajectories: Iterable[Trajectory], planned: int) -> dict[str, int]:
    """The pilot's agent measures as counts over episodes; divide by `episodes` for rates.

    They overlap as in the pilot's table: `malformed_finals` are all episodes without an accepted answer, and therefore the sum of
    `malformed_uncapped`, `turn_cap`, `token_cap` and `observation_cap`; every other episode has an answer, right or wrong.

    Args:
        trajectories: the recorded episodes.
        planned: episodes that the stage set out to play. What is missing of them is `infrastructure_errors`: an engine or worker fault
            stops a stage and is never a score, so that a finished stage has none.
    """
    rows = list(trajectories)
    outcomes = [row.outcome for row in rows]
    return {
        "episodes": len(rows),
        "strict_success": sum(o.strict for o in outcomes),
        "valid_workflow": sum(o.workflow for o in outcomes),
        "correct_answer": sum(o.answer_correct for o in outcomes),
        "lookup": sum(o.lookup for o in outcomes),
        "calculation": sum(o.calculation for o in outcomes),
        "tool_calls": sum(len(row.calls) for row in rows),
        "tool_errors": sum(o.tool_errors for o in outcomes),
        "malformed_finals": sum(o.answer is None for o in outcomes),
        "malformed_uncapped": sum(o.end == "malformed" for o in outcomes),
        "turn_cap": sum(o.end == "turn_cap" for o in outcomes),
        "token_cap": sum(o.end == "token_cap" for o in outcomes),
        "observation_cap": sum(o.end == "observation_cap" for o in outcomes),
        "assistant_tokens": sum(len(segment.ids) for row in rows for segment in row.sampled),
        "external_tokens": sum(len(row.completion_ids) - sum(row.loss_mask) for row in rows),
        "infrastructure_errors": planned - len(rows),
    }
