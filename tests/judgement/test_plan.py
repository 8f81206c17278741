"""Plan: what the design sees follows from the power library; a weak design is refused by a message; hours need a record."""

import json
from pathlib import Path
from typing import Any

import pytest

from agentrl.evidence.files import write_json
from agentrl.judgement.plan import PlanError, chance, draw, forecast, plan, refuse_weak
from agentrl.judgement.settings import Plan
from agentrl.statistics.power import mcnemar_power

PILOT = Plan(
    wanted_difference=0.1, power=0.8, discordance=0.2, repeatable=0.5, seed_sd=0.05, gate_discordances=(0.046875,), refuse_weak=False,
    items=32, trials=1, seeds=1, arms=1, retention_items=64, alpha=0.05,
)  # fmt: skip


def changed(**values: Any) -> Plan:
    return PILOT.model_copy(update=values)


def test_the_pilot_s_design() -> None:
    found = plan(PILOT)
    assert found["test"] == "mcnemar-exact"
    assert found["sentences"][0].startswith(
        "32 items, 1 trial, 1 seed: significance takes at least 6 wins to 0 losses"
    )
    assert found["false_alarms"] == {"0.046875": pytest.approx(0.38, abs=0.005)}
    assert found["power"] == mcnemar_power(32, 0.1, 0.2)
    assert found["strong_enough"] is False
    assert len(found["sentences"]) == 3
    assert json.loads(json.dumps(found, allow_nan=False)) == found == plan(PILOT)


def test_needed_items_are_enough() -> None:
    needed = plan(PILOT)["needed"]["items"]
    assert plan(changed(items=needed))["strong_enough"] is True


def test_several_seeds_plan_for_the_t_interval() -> None:
    found = plan(changed(seeds=5, trials=4, items=400))
    assert found["test"] == "two-way-t"
    assert set(found["needed"]) == {"items", "trials", "seeds"}
    assert found["power"] == chance(changed(seeds=5, trials=4, items=400), 0.1)


def test_more_arms_take_a_smaller_level_and_placebos_none() -> None:
    assert plan(changed(arms=4))["alpha"] == 0.05 / 4
    assert plan(changed(arms=0))["alpha"] == 0.05
    assert chance(changed(arms=4, items=100), 0.2) < chance(changed(items=100), 0.2)


def test_a_weak_design_is_refused_only_where_asked() -> None:
    found = plan(PILOT)
    refuse_weak(PILOT, found)
    with pytest.raises(
        PlanError,
        match=r"too weak to train: power 11%, wanted 80% for 10\.0 points\. To find 10\.0 points",
    ):
        refuse_weak(changed(refuse_weak=True), found)
    refuse_weak(changed(refuse_weak=True), plan(changed(items=400)))


def test_hours_come_from_finished_stages_of_this_study(tmp_path: Path) -> None:
    jobs = {"train": 2, "agent-test": 3, "retention": 3}
    assert forecast(tmp_path, jobs) == "GPU hours: no record yet."
    write_json(tmp_path / "arms/pilot/seed-1/train/status.json", {"state": "done", "seconds": 3600})
    write_json(tmp_path / "arms/pilot/seed-2/train/status.json", {"state": "failed", "seconds": 9})
    write_json(
        tmp_path / "policies/baseline/agent-test/status.json", {"state": "done", "seconds": 1200}
    )
    assert forecast(tmp_path, jobs) == (
        "GPU hours: about 3.00 for 2 runs and all evaluations, by the mean of recorded stages, retention not counted (no record yet)."
    )


def test_the_picture_is_a_png(tmp_path: Path) -> None:
    draw(plan(PILOT), PILOT, tmp_path / "power.png")
    assert (tmp_path / "power.png").read_bytes().startswith(b"\x89PNG")
