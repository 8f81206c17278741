"""The verdict on every arm: one statement over items and training seeds, and whether the rule that was set beforehand holds.

"Improved" needs all of: enough training seeds, a gain whose seed-aware p value, adjusted over the arms, lies below alpha, a placebo
without such a gain, and a retention loss bounded by the margin. Whatever is missing is named. Per-candidate comparisons, which are
conditional on their seed, stand in `comparison.py`.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import pandas as pd

from agentrl.evaluation.mgsm import MGSM_CONTRADICTED
from agentrl.judgement.comparison import BASELINE, RETENTION, by_arm, measures_of, seed_of
from agentrl.judgement.settings import Statistics
from agentrl.statistics.noninferiority import non_inferiority
from agentrl.statistics.paired import mcnemar_exact, paired, sign_flip, zero_drop_gate
from agentrl.statistics.power import observed_spread
from agentrl.statistics.scores import pass_hat_k, seed_differences
from agentrl.statistics.two_way import crossed_bootstrap, holm, two_way_mean

Scores = Mapping[tuple[str, str], pd.DataFrame]
"""(policy, measure) -> item, trial, score."""


def judge(scores: Scores, placebos: Collection[str], settings: Statistics) -> dict[str, Any]:
    """Every arm on every measure it was evaluated on, pass^k of every policy, and the rule, as plain data (fractions, not per cent).

    The rule is applied to arms that were evaluated on the judged measure: with a choice on dev, to the chosen one. A placebo that was not
    evaluated there is watched on dev.

    Args:
        scores: of the baseline and of every candidate `{arm}/seed-{seed}`.
        placebos: arms whose reward was random.
        settings: confidence, alpha, margin, seeds the rule asks for.

    Raises:
        StatisticsError: items or trials are missing or doubled.
    """
    arms = {
        arm: {m: _arm(scores, names, m, settings) for m in measures_of(scores, names[0])}
        for arm, names in by_arm(scores).items()
    }
    measures = measures_of(scores, BASELINE)
    for measure in measures:
        _adjust(
            {
                a: found[measure]
                for a, found in arms.items()
                if a not in placebos and measure in found and measure != RETENTION
            }
        )
    judged = judged_on(measures)
    watched = {arm: judged_on(list(arms[arm])) for arm in sorted(placebos) if arm in arms}
    quiet = {arm: arms[arm][measure] for arm, measure in watched.items()}
    return {
        "judged_on": judged,
        "placebos": watched,
        "arms": arms,
        "pass_hat_k": _pass_hat_k(scores),
        "rule": {
            arm: rule(found[judged], found.get(RETENTION), quiet, settings)
            for arm, found in arms.items()
            if arm not in placebos and judged in found
        },
    }


def _pass_hat_k(scores: Scores) -> dict[str, dict[str, dict[str, float]]]:
    """Policy -> agent measure -> k -> pass^k."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for (policy, measure), table in scores.items():
        if measure != RETENTION:
            found.setdefault(policy, {})[measure] = {
                str(k): value for k, value in pass_hat_k(table).items()
            }
    return found


def judged_on(measures: Sequence[str]) -> str:
    """The measure that a verdict rests on: agent-test where it was evaluated, else agent-dev."""
    return max(m for m in measures if m != RETENTION)


def rule(
    arm: Mapping[str, Any],
    retention: Mapping[str, Any] | None,
    placebos: Mapping[str, Any],
    settings: Statistics,
) -> dict[str, Any]:
    """Whether an arm may be called improved, and every part of the rule that is missing, in words."""
    missing = [
        *_seeds(arm, settings),
        *_gain(arm, settings),
        *_placebo(placebos, settings),
        *_bound(retention),
    ]
    return {"improved": not missing, "missing": missing}


def gained(arm: Mapping[str, Any], alpha: float) -> bool:
    """Whether the mean rose beyond chance: by the seed-aware p value, with one seed by the items alone.

    All items up alike have no t statement, but are a gain.
    """
    if arm["difference"] <= 0:
        return False
    p = arm["two_way"]["p"] if arm["seeds"] > 1 else arm["item_p"]
    return p is None or p < alpha


def _arm(
    scores: Scores, names: Sequence[str], measure: str, settings: Statistics
) -> dict[str, Any]:
    """One arm on one measure; retention with its gates and its bound."""
    tables = {seed_of(name): scores[name, measure] for name in names}
    baseline = scores[BASELINE, measure]
    differences = seed_differences(baseline, tables)
    two_way = two_way_mean(differences, settings.confidence)
    before = float(baseline.groupby("item")["score"].mean().mean())
    result = {
        "seeds": len(names),
        "items": two_way.items,
        "trials": two_way.trials,
        "baseline": before,
        "candidate": before + two_way.difference,
        "difference": two_way.difference,
        "two_way": asdict(two_way),
        "crossed_bootstrap": asdict(
            crossed_bootstrap(differences, settings.confidence, seed=settings.seed)
        ),
        "item_p": _item_p(baseline, next(iter(tables.values())), settings)
        if len(tables) == 1
        else None,
        "holm_p": None,
        "observed_spread": asdict(observed_spread(two_way)) if two_way.items > 1 else None,
    }
    if measure == RETENTION:
        result |= _retained(baseline, tables, settings)
        result["without_contradicted"] = _without_contradicted(baseline, tables, settings)
    return result


def _item_p(baseline: pd.DataFrame, table: pd.DataFrame, settings: Statistics) -> float:
    """Exact test over the items of the only seed, conditional on it."""
    pair = paired(baseline, table)
    return (
        mcnemar_exact(pair.wins, pair.losses)
        if pair.trials == 1
        else sign_flip(pair.differences, seed=settings.seed).p
    )


def _retained(
    baseline: pd.DataFrame, tables: Mapping[int, pd.DataFrame], settings: Statistics
) -> dict[str, Any]:
    """Zero-drop gate of every seed, and the non-inferiority bound over all of them."""
    pairs = {seed: paired(baseline, table) for seed, table in tables.items()}
    gates = {str(seed): asdict(zero_drop_gate(pair)) for seed, pair in pairs.items()}
    study = (
        next(iter(pairs.values()))
        if len(pairs) == 1
        else two_way_mean(seed_differences(baseline, tables), settings.confidence)
    )
    return {
        "zero_drop_gates": gates,
        "non_inferiority": asdict(non_inferiority(study, settings.margin, settings.confidence)),
    }


def _without_contradicted(
    baseline: pd.DataFrame, tables: Mapping[int, pd.DataFrame], settings: Statistics
) -> dict[str, Any] | None:
    """The same without the MGSM items whose German contradicts the gold answer; None where there is none, or nothing else."""
    left_out = sorted(MGSM_CONTRADICTED & set(baseline["item"]))
    kept = baseline[~baseline["item"].isin(left_out)]
    if not left_out or kept.empty:
        return None
    others = {seed: table[~table["item"].isin(left_out)] for seed, table in tables.items()}
    difference = two_way_mean(seed_differences(kept, others), settings.confidence).difference
    return {
        "left_out": len(left_out),
        "difference": difference,
        **_retained(kept, others, settings),
    }


def _adjust(arms: Mapping[str, dict[str, Any]]) -> None:
    """Set Holm's p values over the arms. One seed has no seed-aware p; a p that does not exist still counts as one arm more."""
    several = {arm: found["two_way"]["p"] for arm, found in arms.items() if found["seeds"] > 1}
    for arm, p in holm({arm: 1.0 if p is None else p for arm, p in several.items()}).items():
        arms[arm]["holm_p"] = None if several[arm] is None else p


def _seeds(arm: Mapping[str, Any], settings: Statistics) -> list[str]:
    wanted = settings.seeds_for_verdict
    return [] if arm["seeds"] >= wanted else [f"insufficient seeds: {arm['seeds']} of {wanted}"]


def _gain(arm: Mapping[str, Any], settings: Statistics) -> list[str]:
    if arm["difference"] <= 0:
        return [f"no gain: {100 * arm['difference']:+.1f} points"]
    if arm["seeds"] == 1:
        return ["no p value over seeds: one seed"]
    if arm["holm_p"] is None:
        return ["no p value over seeds: nothing varies"]
    return (
        []
        if arm["holm_p"] < settings.alpha
        else [f"gain within chance: adjusted p {arm['holm_p']:.3g}, needs below {settings.alpha}"]
    )


def _placebo(placebos: Mapping[str, Any], settings: Statistics) -> list[str]:
    if not placebos:
        return ["no placebo was run"]
    return [
        f"placebo {arm} gained {100 * found['difference']:+.1f} points"
        for arm, found in placebos.items()
        if gained(found, settings.alpha)
    ]


def _bound(retention: Mapping[str, Any] | None) -> list[str]:
    if retention is None:
        return ["retention was not evaluated"]
    bound = retention["non_inferiority"]
    loss, margin = 100 * bound["lower"], 100 * bound["margin"]
    return (
        []
        if bound["passed"]
        else [f"retention bound not held: {loss:+.1f} points, needs above {-margin:+.1f}"]
    )
