"""Non-inferiority: is the candidate worse by less than a margin that was fixed beforehand, and how many items it takes to say so.

Passing means that the lower end of a two-sided interval lies above -margin; at confidence 0.95 that is a one-sided 2.5% test, the
convention of ICH E9. Unlike a zero-drop gate it does not punish an equal model with even odds, and unlike a p value above 0.05 it is not
passed by having few items.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import optimize, stats

from agentrl.statistics.paired import COVERS, Paired, check_open_unit
from agentrl.statistics.power import MOST_ITEMS, Design, Spread, smallest_size
from agentrl.statistics.two_way import TwoWay

POWER: Final = 0.8
TAIL: Final = 1e-10  # of the number of differing items, left out of an enumeration
NO_EVENT: Final = "Nothing varies between items; the items needed assume that this stays so."
SKEWED: Final = "Where seeds crowd at a success rate near 1, the lower end of the two-way interval is too high in up to 6% of simulated studies."


@dataclass(frozen=True)
class NonInferiority:
    """The bound, the verdict and what a sharper study would take. All values are fractions."""

    passed: bool
    """Whether `lower` lies above -margin."""
    lower: float
    """Lower end of the two-sided interval, in [-1, 1]."""
    margin: float
    confidence: float
    method: str
    """`tango-score`, or `matched-tango-score` for several trials or seeds."""
    items_needed: int | None
    """Items with which an equally good model passes with 80% power, seeds and trials as here; None if even 100,000 would not do."""
    note: str


def non_inferiority(
    result: Paired | TwoWay, margin: float, confidence: float = 0.95
) -> NonInferiority:
    """Return whether the candidate is worse by less than the margin, by Tango's score bound.

    One 0/1 trial per item: the bound itself (`tango_lower`). Several trials or seeds: the bound of the wins and losses of one trial that
    have the same mean and standard error, n(q + d) / 2 and n(q - d) / 2 with q = n se^2 + d^2 (at least |d|, at most 1), and Student's
    quantile of the two-way degrees of freedom instead of the normal one; never above the t bound (`matched_lower`).

    Why no plain t bound: what retention guards against is losing a few items altogether. If 5% of all items are lost, 64 sampled items
    hold none or one of them in 16% of all samples, and the t bound then passes a margin of 5 points. The score bound knows what few
    events can hide; at the margin it passes about 2.5% or less in such cases (tests).

    Args:
        result: one seed's paired comparison, or the two-way mean over seeds.
        margin: tolerated loss, in (0, 1).
        confidence: two-sided, in (0, 1).

    Raises:
        StatisticsError: a margin or confidence outside (0, 1).
    """
    check_open_unit(margin, "margin")
    check_open_unit(confidence, "confidence")
    if (
        isinstance(result, Paired)
        and result.trials == 1
        and set(result.differences.unique()) <= {-1.0, 0.0, 1.0}
    ):
        lower = tango_lower(result.wins, result.losses, result.n, _normal(confidence))
        items = tango_items(margin, (result.wins + result.losses) / result.n, confidence)
        note = COVERS["items"] if result.wins + result.losses else f"{COVERS['items']} {NO_EVENT}"
        return NonInferiority(
            lower > -margin, lower, margin, confidence, "tango-score", items, note
        )
    n, seeds, se, df, spread, note = _study(result)
    quantile = _normal(confidence) if df is None else float(stats.t.ppf((1 + confidence) / 2, df))
    lower = matched_lower(result.difference, se, n, quantile)
    items = matched_items(margin, spread, seeds, confidence)
    note = note if se > 0 else f"{note} {NO_EVENT}"
    return NonInferiority(
        lower > -margin, lower, margin, confidence, "matched-tango-score", items, note
    )


def tango_lower(wins: float, losses: float, n: int, quantile: float) -> float:
    """Return the lower end of Tango's score interval for a difference of paired proportions (Tango 1998).

    It is the d in [-1, (wins - losses) / n] at which `tango_z` equals the quantile (1.96 for 95%), and -z^2 / (n + z^2) if no item differs:
    small samples stay wide.
    """
    if losses >= n:
        return -1.0
    return float(
        optimize.brentq(
            lambda d: float(tango_z(wins, losses, n, d)) - quantile,
            -1 + 1e-12,
            (wins - losses) / n,
            xtol=1e-12,
        )
    )


def tango_z(wins: ArrayLike, losses: ArrayLike, n: int, difference: float) -> NDArray[np.float64]:
    """Return Tango's score statistic of H0: P(win) - P(loss) = difference, in (-1, 1); standard normal under H0.

    z = (wins - losses - n d) / sqrt(n (2 q + d (1 - d))), with q the loss rate's maximum-likelihood value under H0, the root
    (sqrt(B^2 - 4 A C) - B) / (2 A) for A = 2 n, B = (2 n - wins + losses) d - wins - losses, C = -losses d (1 - d).
    """
    wins, losses = np.asarray(wins, dtype=np.float64), np.asarray(losses, dtype=np.float64)
    b = (2 * n - wins + losses) * difference - wins - losses
    c = -losses * difference * (1 - difference)
    loss_rate = (np.sqrt(np.maximum(b**2 - 8 * n * c, 0)) - b) / (4 * n)
    variance = n * (2 * loss_rate + difference * (1 - difference))
    above = wins - losses - n * difference
    return np.divide(
        above, np.sqrt(np.maximum(variance, 0)), out=np.zeros_like(above), where=variance > 0
    )


def matched_lower(difference: float, se: float, n: int, quantile: float) -> float:
    """Return `tango_lower` for the one-trial wins and losses with this mean and standard error, or the t bound where that is lower.

    The t bound is the lower one for clear gains, and where seeds differ more than any n items could: n se^2 + d^2 above 1.
    """
    moment = min(max(n * se**2 + difference**2, abs(difference)), 1.0)
    score = tango_lower(n * (moment + difference) / 2, n * (moment - difference) / 2, n, quantile)
    return max(min(score, difference - quantile * se), -1.0)


def tango_items(
    margin: float, discordance: float, confidence: float = 0.95, power: float = POWER
) -> int | None:
    """Return items with which an equally good model passes Tango's bound with the wanted power; None above 100,000.

    Exact power is a saw: the answer has the wanted power, a few items more may lack it by a little.
    """
    return smallest_size(
        lambda n: tango_power(n, margin, discordance, confidence) >= power, 1, MOST_ITEMS
    )


def tango_power(
    n: int, margin: float, discordance: float, confidence: float = 0.95, difference: float = 0.0
) -> float:
    """Return the probability of passing, by enumeration of how many items differ and how many of these are losses.

    Args:
        n: items.
        margin: tolerated loss.
        discordance: share of items that differ, at least |difference|.
        confidence: two-sided.
        difference: the candidate's true difference; 0 is an equally good model, -margin the largest that must not pass.
    """
    low, high = stats.binom.ppf([TAIL, 1 - TAIL], n, discordance)
    differing = np.arange(int(low), int(high) + 1)[:, None]
    losses = np.arange(int(high) + 1)[None, :]
    passes = tango_z(np.maximum(differing - losses, 0), losses, n, -margin) > _normal(confidence)
    loss_share = 0.5 if discordance == 0 else (discordance - difference) / (2 * discordance)
    weights = stats.binom.pmf(differing, n, discordance) * stats.binom.pmf(
        losses, differing, loss_share
    )
    return float((weights * passes).sum())


def matched_items(
    margin: float, spread: Spread, seeds: int, confidence: float = 0.95, power: float = POWER
) -> int | None:
    """Return items with which an equally good model passes `matched_lower` with the wanted power; None if no number would do.

    The bound of a mean that lies power's normal quantile of standard errors below 0 must still clear the margin; within 2% of exact
    enumeration for one trial. `spread` is that of the trials at hand: item and interaction variance include their noise.
    """
    below = float(stats.norm.ppf(power))

    def enough(n: int) -> bool:
        se, df = spread.error(Design(n, seeds=seeds))
        quantile = float(stats.t.ppf((1 + confidence) / 2, max(df, 1.0)))
        return below * se < 1 and matched_lower(-below * se, se, n, quantile) > -margin

    return smallest_size(enough, 2, MOST_ITEMS)


def _study(result: Paired | TwoWay) -> tuple[int, int, float, float | None, Spread, str]:
    """Return items, seeds, standard error (0 without variation), its degrees of freedom, spread at these trials, and note."""
    if isinstance(result, Paired):
        variance = float(result.differences.var(ddof=1)) if result.n > 1 else 0.0
        return (
            result.n,
            1,
            math.sqrt(variance / result.n),
            result.n - 1.0 if variance > 0 else None,
            Spread(variance),
            COVERS["items"],
        )
    parts = result.components
    spread = (
        Spread(0.0)
        if parts is None
        else Spread(parts.item, parts.seed or 0.0, parts.residual or 0.0)
    )
    note = f"{result.note} {SKEWED}" if len(result.seeds) > 1 else result.note
    return result.items, len(result.seeds), result.se or 0.0, result.df, spread, note


def _normal(confidence: float) -> float:
    """Return the two-sided normal quantile."""
    return float(stats.norm.ppf((1 + confidence) / 2))
