"""What a design can see before it runs: power, smallest detectable difference, and what a wanted difference would take.

Everything is deterministic. Power counts only the right direction, a significant gain: a significant loss is no success. Two tests are
planned for: the exact McNemar test (one seed, one trial) and the two-way t interval of `inference.py` (any seeds and trials).
Values are fractions, variances squared fractions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from scipy import stats

from agentrl.statistics.paired import (
    TIE_TOLERANCE,
    check_items,
    check_open_unit,
    smallest_significant_wins,
    zero_drop_false_alarm,
)
from agentrl.statistics.scores import StatisticsError
from agentrl.statistics.two_way import INFERENTIAL_SEEDS, TwoWay
from agentrl.statistics.variance import satterthwaite

MOST_ITEMS: Final = 100_000  # a search for items ends here: more than any benchmark has
MOST_REPEATS: Final = 1_000  # a search for trials or seeds ends here
RESOLUTION: Final = 1e-4  # of a smallest detectable difference: a hundredth of a point


@dataclass(frozen=True)
class Design:
    """A study's size and what it asks of its test."""

    items: int
    trials: int = 1
    seeds: int = 1
    alpha: float = 0.05
    """Two-sided."""
    power: float = 0.8
    """Wanted probability of a significant gain."""

    def __post_init__(self) -> None:
        """Refuse sizes below 1 and levels outside (0, 1)."""
        for name in ("items", "trials", "seeds"):
            if getattr(self, name) < 1:
                raise StatisticsError(f"{name} is {getattr(self, name)}, expected at least 1")
        check_open_unit(self.alpha, "alpha")
        check_open_unit(self.power, "power")


@dataclass(frozen=True)
class Spread:
    """Variances from which a design's standard error follows; none is negative."""

    item: float
    """Of the true item differences, over seeds."""
    seed: float = 0.0
    """Of the training seeds' true mean differences."""
    interaction: float = 0.0
    """Of the item x seed effect."""
    trial: float = 0.0
    """Of one trial's difference within an item and seed, beside what all seeds share."""
    stream: float = 0.0
    """Of one trial's difference within an item, shared by all seeds: its random stream and the baseline's one outcome."""

    def mean_squares(self, design: Design) -> tuple[float, float, float]:
        """Return the expected mean squares of items, seeds and residual of the (item, seed) means, see `variance.anova`."""
        residual = self.interaction + self.trial / design.trials
        item = residual + design.seeds * (self.item + self.stream / design.trials)
        return item, residual + design.items * self.seed, residual

    def error(self, design: Design) -> tuple[float, float]:
        """Return standard error and degrees of freedom of the mean difference; items only if the design has one seed."""
        item, seed, residual = self.mean_squares(design)
        if design.seeds == 1:
            return float(np.sqrt(item / design.items)), design.items - 1.0
        variance = (item + seed - residual) / (design.items * design.seeds)
        return float(np.sqrt(variance)), float(
            satterthwaite(item, seed, residual, design.items, design.seeds)
        )


def assumed_spread(discordance: float, seed_sd: float = 0.0, repeatable: float = 0.5) -> Spread:
    """Return a spread for planning without a record, from the share of items on which two single trials would differ.

    One 0/1 trial of each of two equally good policies, both drawn from one stream, has difference variance `discordance`. The share
    `repeatable` of it is taken as true item differences that further trials leave, the rest as trial noise, half of it shared by all
    seeds. Half, however closely a stream ties the policies: if baseline b and candidates a, a' are alike, with variance v and covariance c
    given the item, then Var(a - b) = 2 (v - c) and Cov(a - b, a' - b) = c - c - c + v = v - c.

    Raises:
        StatisticsError: a negative seed_sd, or a share outside [0, 1].
    """
    _check_share(discordance, "discordance")
    _check_share(repeatable, "repeatable")
    if seed_sd < 0:
        raise StatisticsError(f"seed_sd is {seed_sd}, expected at least 0")
    noise = (1 - repeatable) * discordance / 2
    return Spread(item=repeatable * discordance, seed=seed_sd**2, trial=noise, stream=noise)


def observed_spread(estimate: TwoWay) -> Spread:
    """Return the spread that a finished study shows, for planning the next one.

    The item component of the estimate holds stream / trials (`variance.py`), which is taken out; with one seed, whose trials do not tell
    what seeds would share, all of the trial variance / trials. Both come from differences within one trial, not from the two policies'
    own trial variances: under shared streams these do not add up, since Var(a - b) = Var(a) + Var(b) - 2 Cov(a, b). With one trial
    nothing tells noise from item effects: all of it stays, as if more trials would not help.

    Raises:
        StatisticsError: one item.
    """
    parts = estimate.components
    if parts is None:
        raise StatisticsError("one item only: no variance components to plan from")
    trial, stream = parts.trial or 0.0, parts.stream or 0.0
    interaction = parts.interaction if parts.interaction is not None else parts.residual or 0.0
    shared = trial if parts.seed is None else stream
    return Spread(
        max(parts.item - shared / estimate.trials, 0.0),
        parts.seed or 0.0,
        interaction,
        trial,
        stream,
    )


def mcnemar_power(n: int, gain: float, discordance: float, alpha: float = 0.05) -> float:
    """Return the probability that the two-sided exact McNemar test finds a gain, by enumeration.

    D ~ Binomial(n, discordance) items differ, L ~ Binomial(D, (discordance - gain) / (2 discordance)) of them are losses. The test
    finds a gain if 2 P(Binomial(D, 1/2) <= L) <= alpha. Summed over all D, in closed form over L.

    Raises:
        StatisticsError: n below 1, alpha outside (0, 1), or a discordance outside [|gain|, 1].
    """
    check_items(n)
    check_open_unit(alpha, "alpha")
    if not abs(gain) <= discordance <= 1:
        raise StatisticsError(
            f"discordance is {discordance}, expected between |gain| = {abs(gain)} and 1: each net gain is an item that differs"
        )
    if discordance == 0:
        return 0.0
    differing = np.arange(n + 1)
    limit = stats.binom.ppf(
        alpha / 2, differing, 0.5
    )  # smallest L with P(<= L) >= alpha / 2: significant only where equal
    limit = np.where(
        stats.binom.cdf(limit, differing, 0.5) <= alpha / 2 + TIE_TOLERANCE, limit, limit - 1
    )
    found = stats.binom.cdf(limit, differing, (discordance - gain) / (2 * discordance))
    return float(stats.binom.pmf(differing, n, discordance) @ np.where(limit >= 0, found, 0.0))


def smallest_mcnemar_gain(
    n: int, discordance: float, alpha: float = 0.05, power: float = 0.8
) -> float | None:
    """Return the smallest gain that the exact McNemar test finds with the wanted power, to a hundredth of a point.

    `discordance` is the share of items that differ anyway; a gain above it raises it to the gain, all wins. None where not even a win
    on every item is enough, which happens below 6 items at alpha 0.05.
    """
    _check_share(discordance, "discordance")

    def enough(steps: int) -> bool:
        gain = steps * RESOLUTION
        return mcnemar_power(n, gain, max(gain, discordance), alpha) >= power

    steps = smallest_size(enough, 1, round(1 / RESOLUTION))
    return None if steps is None else steps * RESOLUTION


def mcnemar_items(
    gain: float, discordance: float, alpha: float = 0.05, power: float = 0.8
) -> int | None:
    """Return items with which the exact McNemar test finds the gain; None above 100,000.

    Exact power is a saw: it dips where one more item moves the critical count. The answer has the wanted power, and a few items more
    may lack it by a little.
    """
    _check_gain(gain)
    return smallest_size(
        lambda n: mcnemar_power(n, gain, max(gain, discordance), alpha) >= power, 1, MOST_ITEMS
    )


def t_power(design: Design, gain: float, spread: Spread) -> float:
    """Return the probability that the t interval over items and seeds shows a gain: P(T > t_(1 - alpha / 2, df)).

    T is noncentral t with df degrees of freedom and noncentrality gain / se, both from the expected mean squares (`Spread.error`). An
    approximation: in a study se and df vary. One seed: over items only, so it says nothing of other seeds. One item: 0.
    """
    se, df = spread.error(design)
    if df < 1:
        return 0.0
    if se == 0:
        return 1.0 if gain > 0 else 0.0
    critical = stats.t.ppf(1 - design.alpha / 2, df)
    return float(stats.nct.sf(critical, df, gain / se))


def smallest_t_gain(design: Design, spread: Spread) -> float | None:
    """Return the smallest gain that the t interval shows with the design's power, to a hundredth of a point; None if above 1."""
    steps = smallest_size(
        lambda steps: t_power(design, steps * RESOLUTION, spread) >= design.power,
        1,
        round(1 / RESOLUTION),
    )
    return None if steps is None else steps * RESOLUTION


def needed(design: Design, gain: float, spread: Spread) -> dict[str, int | None]:
    """Return the items, trials and seeds, each changed alone, with which the t interval shows the gain; None where that is not enough.

    Trials stop helping where true item differences remain, items where seeds differ, seeds where items do: a None says that another
    number must grow. One seed cannot be compared with several, whose claim is wider, so seeds start at 2.
    """
    _check_gain(gain)

    def least(name: str, low: int, most: int) -> int | None:
        return smallest_size(
            lambda size: t_power(replace(design, **{name: size}), gain, spread) >= design.power,
            low,
            most,
        )

    return {
        "items": least("items", 2, MOST_ITEMS),
        "trials": least("trials", 1, MOST_REPEATS),
        "seeds": least("seeds", 2, MOST_REPEATS),
    }


def smallest_size(enough: Callable[[int], bool], low: int, most: int) -> int | None:
    """Return the smallest size in [low, most] that is enough, taking `enough` as monotone; None if `most` is not."""
    high = low
    while not enough(high):
        if high >= most:
            return None
        low, high = high + 1, min(2 * high, most)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle + 1, high)
    return high


def false_alarms(n: int, discordances: Iterable[float]) -> dict[float, float]:
    """Return, per discordance, how often an equally accurate model fails the zero-drop gate on n items with one trial.

    A discordance is the share of items on which the two differ although each draws from the same stream as the other.
    """
    return {discordance: zero_drop_false_alarm(n, discordance) for discordance in discordances}


def sentences(
    design: Design,
    wanted: float,
    discordance: float,
    spread: Spread,
    gate_items: int,
    gate_discordances: Sequence[float],
) -> list[str]:
    """Return three plain sentences for the top of a report: what the design sees, what the wanted gain takes, how the gate errs.

    Args:
        design: the study as configured.
        wanted: gain that the study should be able to find.
        discordance: share of items that differ anyway, for the exact test of one trial.
        spread: variances, observed or assumed.
        gate_items: items under the zero-drop gate.
        gate_discordances: plausible shares of them that differ under shared streams, at least one.
    """
    (share, rate), *others = sorted(false_alarms(gate_items, gate_discordances).items())
    first = f"{rate:.0%} of the time if {share:.1%} of the items differ under shared random streams"
    fails = ", ".join([first, *(f"{rate:.0%} if {share:.1%}" for share, rate in others)])
    return [
        _sees(design, discordance, spread),
        takes(design, wanted, discordance, spread),
        f"The zero-drop gate on {_count(gate_items, 'item')} fails an equally accurate model {fails}.",
    ]


def _sees(design: Design, discordance: float, spread: Spread) -> str:
    """Return the sentence about the smallest detectable difference."""
    size = f"{_count(design.items, 'item')}, {_count(design.trials, 'trial')}, {_count(design.seeds, 'seed')}"
    if design.seeds == 1 and design.trials == 1:
        wins = smallest_significant_wins(design.items, design.alpha)
        if wins is None:
            return f"{size}: too few for any outcome to be significant."
        smallest = smallest_mcnemar_gain(design.items, discordance, design.alpha, design.power)
        return f"{size}: significance takes at least {wins} wins to 0 losses, and {_smallest_words(smallest, design.power)}."
    scope = "" if design.seeds > 1 else " (for these policies, not for other seeds)"
    few = (
        f"; fewer than {INFERENTIAL_SEEDS} seeds are descriptive only"
        if 1 < design.seeds < INFERENTIAL_SEEDS
        else ""
    )
    return f"{size}: {_smallest_words(smallest_t_gain(design, spread), design.power)}{scope}{few}."


def takes(design: Design, wanted: float, discordance: float, spread: Spread) -> str:
    """Return the sentence about what the wanted gain would take.

    Args:
        design: the study as it is.
        wanted: gain to be found.
        discordance: share of items that differ, for the exact test of one trial of one seed.
        spread: variances, assumed or observed, for every other design.
    """
    goal = f"To find {_points(wanted)} with {design.power:.0%} power"
    if design.seeds == 1 and design.trials == 1:
        chance = mcnemar_power(design.items, wanted, max(wanted, discordance), design.alpha)
        items = mcnemar_items(wanted, discordance, design.alpha, design.power)
        return f"{goal} (this design: {chance:.0%}) it takes {f'more than {MOST_ITEMS:,} items' if items is None else _count(items, 'item')}."
    each = needed(design, wanted, spread)
    sizes = {name: size for name, size in each.items() if name != "seeds" or design.seeds > 1}
    ways = " or ".join(_count(size, name[:-1]) for name, size in sizes.items() if size is not None)
    short = " and ".join(f"{name} alone" for name, size in sizes.items() if size is None)
    takes = f"it takes {ways}, the rest unchanged" if ways else "no one number is enough"
    return f"{goal} (this design: {t_power(design, wanted, spread):.0%}) {takes}{f'; {short} cannot do it' if ways and short else ''}."


def _smallest_words(gain: float | None, power: float) -> str:
    return (
        "no gain is found"
        if gain is None
        else f"the smallest gain found with {power:.0%} power is {_points(gain)}"
    )


def _count(size: int, what: str) -> str:
    return f"{size:,} {what}" + ("" if size == 1 else "s")


def _points(fraction: float) -> str:
    return f"{100 * fraction:.1f} points"


def _check_share(value: float, name: str) -> None:
    if not 0 <= value <= 1:
        raise StatisticsError(f"{name} is {value}, expected a fraction in [0, 1]")


def _check_gain(gain: float) -> None:
    if not 0 < gain <= 1:
        raise StatisticsError(f"gain is {gain}, expected a fraction in (0, 1]")
