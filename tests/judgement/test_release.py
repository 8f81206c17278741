"""Release: every gate blocks by itself and by name, and nothing else does."""

from typing import Any

import pytest

from agentrl.judgement.release import decide

AUDIT = {"changed": 196, "targets": 196, "largest_logit_difference": 0.2, "tolerance": 0.5}
TRAINED: dict[str, Any] = {
    "reward": "shaped", "mixed_groups": 9, "steps_with_gradient": 15, "adapter_tensors": 392, "adapter_tensors_changed": 392,
    "infrastructure_errors": 0, "merge": AUDIT,
}  # fmt: skip
KEPT = {"wins": 1, "losses": 1, "zero_drop_gate": {"passed": True}}
DROPPED = {"wins": 1, "losses": 2, "zero_drop_gate": {"passed": False}}


def test_every_gate_passed_is_eligible_whatever_the_agent_gained() -> None:
    assert decide(TRAINED, KEPT) == {"eligible": True, "blocked_by": []}


def test_the_pilot_is_blocked_by_its_retention() -> None:
    """30/64 -> 29/64 with one win and two losses."""
    assert decide(TRAINED, DROPPED) == {
        "eligible": False,
        "blocked_by": ["zero-drop retention gate failed (1 won, 2 lost)"],
    }


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"reward": "random"}, "control: its reward is random"),
        ({"infrastructure_errors": 2}, "training health: 2 episodes are missing"),
        ({"infrastructure_errors": -1}, "training health: -1 episodes are missing"),
        ({"mixed_groups": 0}, "training health: no group had reward variation"),
        ({"steps_with_gradient": 0}, "training health: no step had a gradient"),
        (
            {"adapter_tensors_changed": 390},
            "training health: 2 of 392 adapter tensors did not change",
        ),
        ({"merge": AUDIT | {"changed": 195}}, "merge audit: 195 tensors changed, 196 are targets"),
        (
            {"merge": AUDIT | {"largest_logit_difference": 0.51}},
            "merge audit: logits differ by 0.51, tolerated 0.5",
        ),
        (
            {"merge": AUDIT | {"largest_logit_difference": float("nan")}},
            "merge audit: logits differ by nan, tolerated 0.5",
        ),
    ],
)
def test_each_gate_blocks_by_name(changes: dict[str, Any], said: str) -> None:
    assert decide(TRAINED | changes, KEPT) == {"eligible": False, "blocked_by": [said]}


def test_all_that_blocks_is_named_in_the_order_of_the_pipeline() -> None:
    found = decide(TRAINED | {"steps_with_gradient": 0, "merge": AUDIT | {"changed": 0}}, DROPPED)
    assert [phrase.split(" ")[0] for phrase in found["blocked_by"]] == [
        "training",
        "merge",
        "zero-drop",
    ]
