"""Dev for choosing: the arm whose policies are evaluated on test, and everything that choice rested on.

The rule is fixed, so that nothing is left to choose after looking: the highest strict success on dev, as a mean over items, trials and
seeds; of equal arms the one that comes first by name. Placebos are controls and never chosen. Test stays unseen by every arm that was
passed over.
"""

from collections.abc import Collection, Mapping
from typing import Any

import pandas as pd

from agentrl.evidence.errors import StudyError
from agentrl.judgement.comparison import BASELINE, Key, by_arm

DEV, TEST = "agent-dev", "agent-test"


class SelectionError(StudyError, ValueError):
    """There is nothing to choose from."""


def choose_arm(scores: Mapping[Key, pd.DataFrame], placebos: Collection[str]) -> dict[str, Any]:
    """Numbers of every arm on dev, and the chosen one, as plain data (fractions, not per cent).

    Args:
        scores: (policy, measure) -> item, trial, score; other measures than dev are not looked at.
        placebos: arms whose reward was random.

    Returns:
        `measure`, `baseline` (mean), `arms` (arm -> `seed_means`, `mean`), `placebos` (left out), `compared` (how many arms the choice
        was made among) and `chosen`.
    """
    dev = {policy: table for (policy, measure), table in scores.items() if measure == DEV}
    arms = {
        arm: [_mean(dev[name]) for name in names]
        for arm, names in by_arm((name, DEV) for name in dev).items()
    }
    offered = sorted(set(arms) - set(placebos))
    if not offered:
        raise SelectionError(
            f"no arm to choose from on {DEV}: found {sorted(arms) or 'none'}, placebos {sorted(placebos)}"
        )
    means = {arm: sum(found) / len(found) for arm, found in arms.items()}
    return {
        "measure": DEV,
        "baseline": _mean(dev[BASELINE]),
        "arms": {arm: {"seed_means": found, "mean": means[arm]} for arm, found in arms.items()},
        "placebos": sorted(set(placebos) & set(arms)),
        "compared": len(offered),
        "chosen": max(offered, key=means.__getitem__),  # the first of equals: `offered` is sorted
    }


def _mean(table: pd.DataFrame) -> float:
    """Every item has the same trials, so the mean of item means is a plain mean."""
    return float(table["score"].mean())
