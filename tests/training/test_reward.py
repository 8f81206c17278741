"""Reward: the pilot's weights, clipped, and a fair coin for the placebo."""

from itertools import product
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.rollout.trajectory import Key, Segment, Trajectory
from agentrl.study.config import Study
from agentrl.tasks.environment import Outcome
from agentrl.training.reward import REWARDS, shaped
from agentrl.training.settings import Arm, Reward


def outcome(lookup: bool, calculation: bool, strict: bool, errors: int = 0) -> Outcome:
    return Outcome(lookup, calculation, strict, None, strict, strict, errors, "answer")


@pytest.mark.parametrize(
    ("reached", "reward"),
    [
        (outcome(False, False, False), 0.0),
        (outcome(True, False, False), 0.15),
        (outcome(True, True, False), 0.40),
        (outcome(True, True, True), 1.0),
        (outcome(True, True, True, errors=2), 0.90),
        (outcome(True, False, False, errors=1), 0.10),
        (outcome(True, False, False, errors=9), 0.0),
    ],
)
def test_pilot_values(study: Study, reached: Outcome, reward: float) -> None:
    assert shaped(reached, study.reward) == pytest.approx(reward, abs=1e-12)


def test_reward_is_blind_to_a_lucky_answer(study: Study) -> None:
    lucky = Outcome(
        lookup=True,
        calculation=False,
        workflow=False,
        answer=413,
        answer_correct=True,
        strict=False,
        tool_errors=0,
        end="answer",
    )
    assert shaped(lucky, study.reward) == study.reward.lookup


@given(st.tuples(*[st.floats(0, 1)] * 4), st.integers(0, 5))
def test_reward_stays_in_range_and_errors_never_pay(
    weights: tuple[float, ...], errors: int
) -> None:
    section = Reward(
        **dict(zip(("lookup", "calculation", "strict", "tool_error"), weights, strict=True))
    )
    for reached in product((False, True), repeat=3):
        value = shaped(outcome(*reached, errors=errors), section)
        assert 0 <= shaped(outcome(*reached, errors=errors + 1), section) <= value <= 1


def episode(key: Key, reached: Outcome) -> Trajectory:
    return Trajectory(key, [Segment("prompt", [1])], [], reached, "scripted")


def test_arms_name_their_reward(study: Study) -> None:
    reached = episode(
        Key("pilot/seed-1", 0, "train", "train-0001", 0, 1), outcome(True, True, False, errors=1)
    )
    assert set(REWARDS) == set(get_args(Arm.model_fields["reward"].annotation))
    assert (
        REWARDS["shaped"](study.reward, reached)
        == shaped(reached.outcome, study.reward)
        == pytest.approx(0.35)
    )


def test_binary_reward_is_strict_success_alone(study: Study) -> None:
    key = Key("binary/seed-1", 0, "train", "train-0001", 0, 1)
    flags = list(product((False, True), repeat=3))
    found = [
        REWARDS["binary"](study.reward, episode(key, outcome(*reached, errors=5)))
        for reached in flags
    ]
    assert found == [float(strict) for _, _, strict in flags]


def test_random_reward_is_keyed_fair_and_blind(study: Study) -> None:
    keys = [
        Key("placebo/seed-1", step, "train", f"train-{n:04d}", trial, 1)
        for step in range(50)
        for n in range(10)
        for trial in range(4)
    ]
    good, bad = outcome(True, True, True), outcome(False, False, False, errors=3)
    draws = np.array([REWARDS["random"](study.reward, episode(key, good)) for key in keys])
    assert draws.tolist() == [REWARDS["random"](study.reward, episode(key, bad)) for key in keys], (
        "the outcome must not matter"
    )
    assert set(draws) == {0.0, 1.0}
    assert abs(draws.mean() - 0.5) < 4 * 0.5 / np.sqrt(len(draws))
    varied = draws.reshape(-1, 4).std(axis=1) > 0
    assert varied.mean() == pytest.approx(1 - 2 * 0.5**4, abs=0.08), (
        "trials of one group draw independently"
    )
