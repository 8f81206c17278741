"""Preflight: groups of training tasks only, mixed groups per reward and group size, arms refused by name."""

import pytest

from agentrl.rollout.trajectory import Key, Segment, Trajectory
from agentrl.study.config import Study
from agentrl.tasks.environment import Outcome
from agentrl.tasks.families import Task, generate
from agentrl.training import preflight
from agentrl.training.settings import Arm, Preflight, TrainingOverrides

SECTION = Preflight(groups=2, group_size=4)


def group(task: str, *strict: bool, lookup: bool = True) -> list[Trajectory]:
    found = [Outcome(lookup, won, won, None, won, won, 0, "answer") for won in strict]
    return [
        Trajectory(
            Key("baseline", 0, "train", task, n, 42), [Segment("prompt", [1])], [], o, "scripted"
        )
        for n, o in enumerate(found)
    ]


def test_keys_are_whole_groups_of_the_first_training_tasks(study: Study) -> None:
    tasks = generate(study.tasks, "train", 3)
    found = [
        (task.id, key.task, key.trial, key.step, key.seed)
        for task, key in preflight.keys(tasks, SECTION, 42)
    ]
    assert found == [(task.id, task.id, trial, 0, 42) for task in tasks[:2] for trial in range(4)]


def test_a_task_of_another_split_is_refused(tasks: list[Task]) -> None:
    with pytest.raises(preflight.PreflightError, match=rf"{tasks[0].id}.*training tasks only"):
        next(preflight.play(None, tasks, SECTION, 8, 42))  # type: ignore[arg-type]


def test_an_arm_is_judged_with_its_own_group_size(study: Study) -> None:
    """The only success is the third of its group: groups of two never differ."""
    episodes = group("a", False, False, True, False) + group("b", False, False, False, False)
    base = study.training
    assert (
        preflight.verdict(episodes, "four", Arm(reward="binary"), SECTION, base, study.reward)[
            "mixed_groups"
        ]
        == 1
    )
    small = Arm(reward="binary", training=TrainingOverrides(group_size=2))
    with pytest.raises(
        preflight.PreflightError, match="arm 'two' could not learn: none of 2 groups of 2"
    ):
        preflight.verdict(episodes, "two", small, SECTION, base, study.reward)


def test_the_report_counts_mixed_groups_under_every_reward(study: Study) -> None:
    episodes = group("a", False, False, False, False) + group("b", True, False, True, True)
    found = preflight.report(episodes, SECTION, study.reward)
    assert (found["mixed_groups"]["binary"], found["mixed_groups"]["shaped"]) == (1, 1)
    assert (found["counts"]["strict_success"], found["counts"]["lookup"]) == (3, 8)
    assert "strict_success 3" in preflight.rates(found)
