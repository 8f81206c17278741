"""Health: every gate fires on what it guards against and on nothing else; advantages are TRL's."""

import math
import re
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from trl.trainer.utils import nanstd

from agentrl.rollout.trajectory import Key, Segment, Trajectory
from agentrl.study.config import Study
from agentrl.tasks.environment import Outcome
from agentrl.training.health import (
    EPSILON,
    RATIO_BOUNDS,
    HealthError,
    StepRecord,
    advantage_tolerances,
    check_ratio,
    gates,
    group_advantages,
    sampler_gap,
)
from agentrl.training.settings import TrainingSettings


@pytest.fixture
def settings(study: Study) -> TrainingSettings:
    """Four steps of two groups of four."""
    values = {name: getattr(study.training, name) for name in TrainingSettings.model_fields}
    return TrainingSettings(
        **values
        | {"steps": 4, "group_size": 4, "batch_size": 8, "kl": 0.02, "scale_rewards": "group"}
    )


def steps(**changes: dict[str, object]) -> list[StepRecord]:
    """Four healthy steps; `step2={...}` changes the second."""
    made = [
        StepRecord(n, 8, [f"t{n}", f"t{n + 1}"], 1, 0.25, n, 0.1, 0.5, 0.01 * (n - 1))
        for n in (1, 2, 3, 4)
    ]
    return [replace(record, **changes.get(f"step{record.step}", {})) for record in made]


UNMIXED: dict[str, object] = {"mixed_groups": 0}
STILL: dict[str, object] = {"grad_norm": 0.0}


def test_a_healthy_run_returns_what_was_counted(settings: TrainingSettings) -> None:
    found = gates(steps(step2={"mean_reward": 0.75}), 28, [], settings)
    assert found == {
        "steps": 4, "episodes": 32, "unique_tasks": 5, "groups": 8, "mixed_groups": 4, "mean_reward": 0.375, "strict_success": 10,
        "gap_max": 0.0,
        "gates": {
            "mixed_groups": 4, "steps_finite": 4, "steps_with_signal": 4, "steps_with_gradient": 4, "smallest_gradient_with_signal": 0.5,
            "ratio_mean_low": 1.0, "ratio_mean_high": 1.0, "adapter_tensors": 28, "adapter_tensors_changed": 28,
        },
    }  # fmt: skip


def test_the_gates_numbers_are_of_the_steps_that_carry_a_signal(settings: TrainingSettings) -> None:
    quiet = UNMIXED | STILL
    found = gates(
        steps(step1=quiet, step2={"grad_norm": 0.2, "ratio_mean": 0.9}, step4={"ratio_mean": 1.25}),
        28,
        [],
        settings,
    )["gates"]
    assert (
        found["steps_with_signal"],
        found["steps_with_gradient"],
        found["smallest_gradient_with_signal"],
    ) == (3, 3, 0.2)
    assert (found["ratio_mean_low"], found["ratio_mean_high"]) == (0.9, 1.25)


def test_a_policy_that_a_warm_up_moved_has_a_signal_from_the_first_step(
    settings: TrainingSettings,
) -> None:
    warmed = {"step1": UNMIXED | {"kl": 0.01, "grad_norm": 0.1}}
    assert gates(steps(**warmed), 28, [], settings)["gates"]["steps_with_signal"] == 4
    with pytest.raises(HealthError, match=r"step 1: the gradient is 0\.0"):
        gates(steps(step1=UNMIXED | STILL | {"kl": 0.01}), 28, [], settings)


def test_an_unmixed_first_group_gives_no_gradient_and_may(settings: TrainingSettings) -> None:
    """At step 1 the policy is the reference: its KL gradient is exactly 0."""
    assert (
        gates(steps(step1=UNMIXED | STILL, step2=UNMIXED | STILL | {"kl": 0.0}), 28, [], settings)[
            "mixed_groups"
        ]
        == 2
    )


def test_without_kl_an_unmixed_group_may_be_still_at_any_step(settings: TrainingSettings) -> None:
    gates(steps(step3=UNMIXED | STILL), 28, [], settings.model_copy(update={"kl": 0.0}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({f"step{n}": UNMIXED for n in (1, 2, 3, 4)}, "no group had reward variation"),
        ({"step1": STILL}, "step 1: the gradient is 0.0 although the batch carries a signal"),
        ({"step3": STILL}, "step 3: the gradient is 0.0"),
        ({"step3": UNMIXED | STILL}, "step 3: the gradient is 0.0"),
        ({"step1": UNMIXED | STILL, "step4": UNMIXED | STILL}, "step 4: the gradient is 0.0"),
        (
            {"step2": {"grad_norm": float("nan")}},
            "step 2: loss 0.1, gradient norm nan, KL 0.01: not finite",
        ),
        ({"step1": UNMIXED | {"grad_norm": float("nan")}}, "step 1: .* not finite"),
        ({"step4": {"grad_norm": float("inf")}}, "step 4: .* not finite"),
        ({"step4": {"loss": float("nan")}}, "step 4: loss nan"),
        ({"step3": {"kl": float("inf")}}, "step 3: .* KL inf: not finite"),
        (
            {"step2": {"ratio_mean": 0.015, "gap_mean": 4.2}},
            r"step 2: .* 0\.015 times .* \(mean difference 4\.2 nats\)",
        ),
        ({"step3": {"ratio_mean": 2.1}}, r"step 3: .* 2\.1 times"),
        ({"step3": {"ratio_mean": float("nan")}}, "step 3: .* nan times"),
    ],
)
def test_gates_fire(
    settings: TrainingSettings, changes: dict[str, dict[str, object]], message: str
) -> None:
    with pytest.raises(HealthError, match=message):
        gates(steps(**changes), 28, [], settings)


@pytest.mark.parametrize(
    "numbers",
    [[], [1, 2, 3], [1, 2, 4], [1, 2, 2, 3, 4], [2, 1, 3, 4], [1, 2, 3, 4, 5], [0, 1, 2, 3]],
)
def test_missing_doubled_and_shuffled_steps_are_incomplete_evidence(
    settings: TrainingSettings, numbers: list[int]
) -> None:
    with pytest.raises(HealthError, match=re.escape("expected 1..4: evidence is incomplete")):
        gates([replace(steps()[0], step=n) for n in numbers], 28, [], settings)


def test_an_unchanged_adapter_tensor_is_named(settings: TrainingSettings) -> None:
    with pytest.raises(
        HealthError, match=r"2 of 28 adapter tensors did not change, first layer\.0\.lora_B"
    ):
        gates(steps(), 28, ["layer.0.lora_B", "layer.1.lora_B"], settings)


def test_an_adapter_without_tensors_is_no_training(settings: TrainingSettings) -> None:
    with pytest.raises(HealthError, match="0 of 0 adapter tensors did not change"):
        gates(steps(), 0, [], settings)


def test_the_gap_of_two_samplers_by_hand() -> None:
    found = sampler_gap([-1.0, -2.0, -0.5, -3.0], [-1.0, -1.0, -1.5, -3.5])
    assert found == {
        "gap_mean": 0.625,
        "gap_max": 1.0,
        "ratio_mean": round((1 + math.e + 1 / math.e + math.exp(-0.5)) / 4, 6),
        "ratio_outside": 0.5,
    }


def test_the_gap_of_one_sampler_with_itself_is_nothing() -> None:
    assert sampler_gap([-1.0, -20.0], [-1.0, -20.0]) == {
        "gap_mean": 0.0,
        "gap_max": 0.0,
        "ratio_mean": 1.0,
        "ratio_outside": 0.0,
    }


def test_a_hopeless_gap_is_a_number() -> None:
    assert sampler_gap([-1000.0], [-1.0])["ratio_mean"] > RATIO_BOUNDS[1]


def test_two_lengths_are_no_comparison() -> None:
    with pytest.raises(ValueError, match="shorter"):
        sampler_gap([-1.0, -2.0], [-1.0])


@pytest.mark.parametrize("ratio", [0.5, 0.9, 1.0, 1.1, 2.0])
def test_rounding_between_engines_passes(ratio: float) -> None:
    check_ratio(replace(steps()[0], ratio_mean=ratio))


def episode(task: str, trial: int, reward: float, strict: bool) -> Trajectory:
    outcome = Outcome(True, strict, strict, None, strict, strict, 0, "answer")
    return Trajectory(
        Key("pilot/seed-1", 6, "train", task, trial, 1),
        [Segment("prompt", [1])],
        [],
        outcome,
        "scripted",
        reward,
    )


def test_a_step_record_counts_its_batch() -> None:
    rewards = {"a": (1.0, 0.15), "b": (0.4, 0.4), "c": (0.0, 1.0)}
    batch = [
        episode(task, trial, reward, reward == 1)
        for task, group in rewards.items()
        for trial, reward in enumerate(group)
    ]
    assert StepRecord.of(batch, 2) == StepRecord(7, 6, ["a", "b", "c"], 2, 0.491667, 2)


REWARDS = st.one_of(
    st.sampled_from([0.0, 0.05, 0.1, 0.15, 0.35, 0.4, 0.85, 0.95, 1.0]), st.floats(0, 1, width=32)
)


def trl_advantages(rewards: list[float], group: int, scale: str) -> torch.Tensor:
    """The lines of `GRPOTrainer._generate_and_score_completions`, in its float32."""
    found = torch.tensor(rewards).unsqueeze(1).nansum(dim=1)
    centred = found - torch.nanmean(found.view(-1, group), dim=1).repeat_interleave(group, dim=0)
    spread = nanstd(found.view(-1, group), dim=1).repeat_interleave(group, dim=0)
    return centred / (spread + EPSILON) if scale == "group" else centred


@pytest.mark.parametrize("scale", ["group", "none"])
@given(data=st.data(), group=st.integers(2, 16), groups=st.integers(1, 3))
def test_advantages_are_trl_s_within_their_tolerance(
    scale: str, study: Study, data: st.DataObject, group: int, groups: int
) -> None:
    rewards = data.draw(st.lists(REWARDS, min_size=group * groups, max_size=group * groups))
    settings = study.training.model_copy(update={"group_size": group, "scale_rewards": scale})
    expected, tolerance = (
        group_advantages(rewards, settings),
        advantage_tolerances(rewards, settings),
    )
    for trl, own, slack in zip(
        trl_advantages(rewards, group, scale).tolist(), expected, tolerance, strict=True
    ):
        assert abs(trl - own) <= slack


@pytest.mark.parametrize("scale", ["group", "none"])
@given(rewards=st.lists(st.floats(0, 1), min_size=8, max_size=8))
def test_advantages_follow_the_formula(scale: str, study: Study, rewards: list[float]) -> None:
    """Mean and sample standard deviation (n - 1) of each group, by torch in float64."""
    grouped = torch.tensor(rewards, dtype=torch.float64).view(2, 4)
    expected = grouped - grouped.mean(1, keepdim=True)
    if scale == "group":
        expected = expected / (grouped.std(1, keepdim=True) + 1e-4)
    settings = study.training.model_copy(update={"group_size": 4, "scale_rewards": scale})
    assert group_advantages(rewards, settings) == pytest.approx(
        expected.flatten().tolist(), abs=1e-9
    )


@pytest.mark.parametrize("group", [3, 4, 6, 8, 12])
@pytest.mark.parametrize("reward", [0.1, 0.15, 0.4, 0.6, 0.7, 0.85, 0.95])
def test_equal_rewards_never_look_like_an_error(study: Study, group: int, reward: float) -> None:
    """TRL's float32 mean of equal rewards may miss them by an ulp, which only the epsilon 1e-4 divides."""
    settings = study.training.model_copy(update={"group_size": group})
    tolerance = advantage_tolerances([reward] * group, settings)
    assert all(
        abs(a) <= t
        for a, t in zip(
            trl_advantages([reward] * group, group, "group").tolist(), tolerance, strict=True
        )
    )


@pytest.mark.parametrize("scale", ["group", "none"])
def test_the_tolerance_is_far_below_the_smallest_step_of_the_reward(
    study: Study, scale: str
) -> None:
    settings = study.training.model_copy(update={"group_size": 4, "scale_rewards": scale})
    for rewards in ([0.15, 0.15, 0.15, 0.10], [1.0, 0.0, 1.0, 0.95]):
        step = 0.05 / (torch.tensor(rewards).std().item() if scale == "group" else 1)
        assert max(advantage_tolerances(rewards, settings)) < step / 1000
