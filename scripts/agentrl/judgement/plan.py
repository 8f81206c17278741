"""Before training: what the configured design can see, what the wanted gain would take, and how long the rest of the study may run."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentrl.evidence.errors import StudyError
from agentrl.evidence.files import read_json
from agentrl.judgement.settings import Plan
from agentrl.statistics import power

GAINS = [step / 100 for step in range(51)]
"""True gains of the power curve, as fractions."""
SECONDS_PER_HOUR = 3600


class PlanError(StudyError, RuntimeError):
    """The design cannot find what the study wants to find; the message says what it would take."""


def plan(section: Plan) -> dict[str, Any]:
    """Power of the configured design, as plain data; deterministic.

    Alpha is divided by the number of arms: the level of Holm's first step, which one improved arm among others must pass.
    """
    design, spread = (
        _design(section),
        power.assumed_spread(section.discordance, section.seed_sd, section.repeatable),
    )
    one_look = design.seeds == 1 and design.trials == 1
    smallest = (
        power.smallest_mcnemar_gain(design.items, section.discordance, design.alpha, design.power)
        if one_look
        else power.smallest_t_gain(design, spread)
    )
    wanted = section.wanted_difference
    needed = (
        {"items": power.mcnemar_items(wanted, section.discordance, design.alpha, design.power)}
        if one_look
        else power.needed(design, wanted, spread)
    )
    reached = chance(section, wanted)
    return {
        "test": "mcnemar-exact" if one_look else "two-way-t" if design.seeds > 1 else "item-t",
        "alpha": design.alpha,
        "smallest_difference": smallest,
        "power": reached,
        "strong_enough": reached >= design.power,
        "needed": needed,
        "false_alarms": {
            str(share): rate
            for share, rate in power.false_alarms(
                section.retention_items, section.gate_discordances
            ).items()
        },
        "curve": [[gain, chance(section, gain)] for gain in GAINS],
        "sentences": power.sentences(
            design,
            wanted,
            section.discordance,
            spread,
            section.retention_items,
            section.gate_discordances,
        ),
    }


def chance(section: Plan, gain: float) -> float:
    """Probability that the design finds a true gain: exact McNemar for one trial of one seed, else the t interval."""
    design = _design(section)
    if design.seeds == 1 and design.trials == 1:
        return power.mcnemar_power(design.items, gain, max(gain, section.discordance), design.alpha)
    return power.t_power(
        design, gain, power.assumed_spread(section.discordance, section.seed_sd, section.repeatable)
    )


def refuse_weak(section: Plan, found: Mapping[str, Any]) -> None:
    """Raise `PlanError` if the configuration asks for it and the design lacks the wanted power."""
    if section.refuse_weak and not found["strong_enough"]:
        raise PlanError(
            f"the design is too weak to train: power {found['power']:.0%}, wanted {section.power:.0%} for "
            f"{100 * section.wanted_difference:.1f} points. {found['sentences'][1]} Change the design or plan.wanted_difference, "
            "or set plan.refuse_weak to false"
        )


def forecast(study: Path, jobs: Mapping[str, int]) -> str:
    """GPU hours of the configured study, from the stages of it that have run; changes with the machine, so it enters no record.

    Args:
        study: `results/{study}`.
        jobs: stage (`train`, `agent-test`, ...) -> how often the study runs it.
    """
    seconds: dict[str, list[float]] = {}
    for file in sorted(study.glob("arms/*/*/train/status.json")) + sorted(
        study.glob("policies/**/status.json")
    ):
        status = read_json(file)
        if status["state"] == "done":
            seconds.setdefault(file.parent.name, []).append(status["seconds"])
    recorded = {stage: seconds[stage] for stage in jobs if stage in seconds}
    if not recorded:
        return "GPU hours: no record yet."
    total = (
        sum(jobs[stage] * sum(found) / len(found) for stage, found in recorded.items())
        / SECONDS_PER_HOUR
    )
    absent = [stage for stage in jobs if stage not in recorded]
    without = f", {', '.join(absent)} not counted (no record yet)" if absent else ""
    return f"GPU hours: about {total:.2f} for {jobs['train']} runs and all evaluations, by the mean of recorded stages{without}."


def draw(found: Mapping[str, Any], section: Plan, file: Path) -> None:
    """The power curve as a picture."""
    from matplotlib.figure import Figure

    gains, powers = zip(*found["curve"], strict=True)
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.add_subplot()
    axes.plot([100 * gain for gain in gains], powers)
    axes.axhline(section.power, linestyle=":", color="grey")
    axes.axvline(100 * section.wanted_difference, linestyle=":", color="grey")
    axes.set(xlabel="true gain, points", ylabel="probability of a significant gain", ylim=(0, 1.02))
    axes.set_title(
        f"{section.items} items, trials {section.trials}, seeds {section.seeds}, alpha {found['alpha']:.3g}"
    )
    figure.savefig(file, format="png", dpi=120)


def _design(section: Plan) -> power.Design:
    return power.Design(
        section.items,
        section.trials,
        section.seeds,
        section.alpha / max(1, section.arms),
        section.power,
    )
