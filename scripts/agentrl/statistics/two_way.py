"""Inference over items and training seeds: the two-way t interval, its descriptive bootstrap, and Holm over arms.

A claim about a training recipe generalises over two random samples, the items and the training seeds. An interval over items alone
answers for the seeds at hand only; `variance.py` has the model and the formulas.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from agentrl.statistics.paired import CHUNK_CELLS, TIE_TOLERANCE, Interval, check_open_unit
from agentrl.statistics.scores import StatisticsError, difference_cube, some
from agentrl.statistics.variance import Anova, Components, anova, components

COVERS: Final = MappingProxyType(
    {
        "two-way": "Covers the choice of items with their trials and the choice of training seeds; not other task families, start "
        "checkpoints or hyperparameters.",
        "few seeds": "Fewer than 5 training seeds: descriptive. A nominal 95% interval covered 92-97% with 3 seeds and 88-97% with 2 in "
        "simulation, least where the seeds crowd at a success rate near 0 or 1.",
        "one seed": "One training seed: covers the choice of items with their trials only. Another seed may give another answer.",
        "crossed": "Descriptive: items and training seeds resampled together. Where seeds differ, a nominal 95% interval covered 74-94% "
        "with 3 seeds and 83-95% with 5 in simulation, so it is no 95% interval.",
    }
)
INFERENTIAL_SEEDS: Final = 5
"""Fewest seeds with which every simulated coverage of the t interval lies within 93-97%; one row has 92.9%, where streams tie the
policies as closely as can be (benchmarks/statistics/coverage-shared.md)."""


@dataclass(frozen=True)
class TwoWay:
    """Mean difference over items and training seeds, with everything that its interval rests on. All values are fractions."""

    items: int
    seeds: tuple[int, ...]
    trials: int
    difference: float
    """Grand mean of candidate - baseline, in [-1, 1]."""
    se: float | None
    """Standard error of the difference; None where the data hold no variation or only one item."""
    df: float | None
    """Satterthwaite's degrees of freedom; items - 1 with one seed. None as `se`."""
    interval: Interval | None
    """Two-sided t interval; None as `se`."""
    p: float | None
    """Two-sided, of no difference. None as `se`, but 1 if no item differs at all."""
    components: Components | None
    """None with one item."""
    seed_means: tuple[float, ...]
    """Mean difference of each seed, in the order of `seeds`."""
    between_seed_sd: float | None
    """Standard deviation (n - 1) of the seed means; None with one seed."""
    noise_sd: float | None
    """Standard deviation of the seed means that interaction and trials alone would give: equal seeds still differ this much."""
    within_seed_se: float | None
    """Standard error over items of one seed's mean, root mean square over seeds; None with one item."""
    inferential: bool
    """Whether the interval may be claimed as more than descriptive over seeds: at least 5 seeds, and an interval at all."""
    note: str
    """What the interval does not cover, and what is degenerate about it."""


def two_way_mean(differences: pd.DataFrame, confidence: float = 0.95) -> TwoWay:
    """Return the mean difference with a t interval over items and training seeds; over items only with one seed.

    Model and formulas in `variance.py`. One seed: the one-sample t test of the item means, df = items - 1.

    Args:
        differences: columns item, seed, trial, difference; complete. `scores.seed_differences` makes it.
        confidence: two-sided, in (0, 1).

    Raises:
        StatisticsError: a hole, a duplicate, a value outside [-1, 1], or a confidence outside (0, 1).
    """
    check_open_unit(confidence, "confidence")
    cube, seeds = difference_cube(differences)
    cells, (items, k, trials) = cube.mean(axis=2), cube.shape
    squares = anova(cells) if items > 1 and k > 1 else None
    parts = components(cube, squares)
    se, df = _error(cells, squares)
    note = _note(cells, parts, se)
    low, high, p = _student(cells, se, df, confidence)
    return TwoWay(
        items=items,
        seeds=tuple(seeds),
        trials=trials,
        difference=float(cells.mean()),
        se=se,
        df=df,
        interval=None
        if se is None
        else Interval(low, high, "two-way-t" if k > 1 else "item-t", note, confidence),
        p=p,
        components=parts,
        seed_means=tuple(cells.mean(axis=0).tolist()),
        between_seed_sd=float(cells.mean(axis=0).std(ddof=1)) if k > 1 else None,
        noise_sd=None if squares is None else math.sqrt(squares.residual / items),
        within_seed_se=math.sqrt(cells.var(axis=0, ddof=1).mean() / items) if items > 1 else None,
        inferential=k >= INFERENTIAL_SEEDS and se is not None,
        note=note,
    )


def crossed_bootstrap(
    differences: pd.DataFrame, confidence: float = 0.95, *, seed: int = 0, resamples: int = 10_000
) -> Interval:
    """Return the percentile interval of the mean when items and training seeds are each resampled with replacement.

    Descriptive: with few seeds it is too narrow (`COVERS["crossed"]`), as k values resampled have only (k - 1) / k of their variance
    and no t quantile makes up for it (the pigeonhole bootstrap of Owen 2007). Time and memory per chunk are linear in items x resamples.

    Args:
        differences: as for `two_way_mean`.
        confidence: two-sided, in (0, 1).
        seed: of the resampling.
        resamples: at least 1.

    Raises:
        StatisticsError: as `two_way_mean`, or resamples below 1.
    """
    check_open_unit(confidence, "confidence")
    if resamples < 1:
        raise StatisticsError(f"resamples is {resamples}, expected at least 1")
    cube, seeds = difference_cube(differences)
    means = _crossed_means(
        cube.mean(axis=2), np.random.Generator(np.random.Philox(seed)), resamples
    )
    levels = ((1 - confidence) / 2, (1 + confidence) / 2)
    low, high = (float(np.quantile(means, level, method="inverted_cdf")) for level in levels)
    note = COVERS["crossed"] if len(seeds) > 1 else f"{COVERS['crossed']} {COVERS['one seed']}"
    return Interval(low, high, "crossed-percentile-bootstrap", note, confidence, seed, resamples)


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Return Holm's adjusted p values, in the order given: strong control of the family-wise error without independence (Holm 1979).

    The j-th smallest of m becomes the largest of (m - l + 1) p_(l) over l <= j, at most 1.

    Raises:
        StatisticsError: a p value that is no number in [0, 1].
    """
    wrong = [f"{name}: {p}" for name, p in p_values.items() if not 0 <= p <= 1]
    if wrong:
        raise StatisticsError(f"p values must lie in [0, 1], found {some(wrong)}")
    adjusted, reached = {}, 0.0
    for rank, (name, p) in enumerate(sorted(p_values.items(), key=lambda pair: pair[1])):
        reached = max(reached, min(1.0, (len(p_values) - rank) * p))
        adjusted[name] = reached
    return {name: adjusted[name] for name in p_values}


def _crossed_means(
    cells: NDArray[np.float64], rng: np.random.Generator, resamples: int
) -> NDArray[np.float64]:
    """Return `resamples` grand means of resampled items x resampled seeds, in chunks of bounded memory."""
    n, k = cells.shape
    rows, parts = max(1, CHUNK_CELLS // n), []
    for start in range(0, resamples, rows):
        size = min(rows, resamples - start)
        item_means = draw_counts(rng, size, n) @ cells / n
        parts.append((item_means * draw_counts(rng, size, k)).sum(axis=1) / k)
    return np.concatenate(parts)


def draw_counts(rng: np.random.Generator, rows: int, n: int) -> NDArray[np.float64]:
    """Return how often each of n things is drawn in n draws with replacement, one row per resample."""
    drawn = rng.integers(n, size=(rows, n)) + n * np.arange(rows)[:, None]
    return np.bincount(drawn.ravel(), minlength=rows * n).reshape(rows, n).astype(np.float64)


def _error(cells: NDArray[np.float64], squares: Anova | None) -> tuple[float | None, float | None]:
    """Return standard error and degrees of freedom of the grand mean; None, None where nothing varies or one item gives no error."""
    items = len(cells)
    if items == 1:
        return None, None
    variance, df = (
        (cells.var(ddof=1) / items, items - 1.0)
        if squares is None
        else (squares.variance, squares.df)
    )
    se = math.sqrt(variance)
    return (se, float(df)) if se > TIE_TOLERANCE else (None, None)


def _student(
    cells: NDArray[np.float64], se: float | None, df: float | None, confidence: float
) -> tuple[float | None, float | None, float | None]:
    """Return low, high and p of the t statement. Without an error only the absence of any difference has a p value, 1."""
    mean = float(cells.mean())
    if se is None or df is None:
        unmoved = len(cells) > 1 and abs(mean) <= TIE_TOLERANCE
        return None, None, 1.0 if unmoved else None
    half = float(stats.t.ppf((1 + confidence) / 2, df)) * se
    return mean - half, mean + half, float(2 * stats.t.sf(abs(mean) / se, df))


def _note(cells: NDArray[np.float64], components: Components | None, se: float | None) -> str:
    """Return what the interval leaves out and why there may be none."""
    items, k = cells.shape
    sentences = [COVERS["one seed"] if k == 1 else COVERS["two-way"]]
    if 1 < k < INFERENTIAL_SEEDS:
        sentences.append(COVERS["few seeds"])
    if items == 1:
        sentences.append("One item only: no interval, as nothing shows how items differ.")
    elif se is None:
        sentences.append(
            f"All {items} items differ alike: no t interval, as nothing varies; that is no certainty."
        )
    elif components is not None and "seed" in components.truncated:
        sentences.append(
            "The seeds differ less than noise alone would make them: their component stands as 0."
        )
    return " ".join(sentences)
