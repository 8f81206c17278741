"""Two-way random-effects variance components, items x training seeds, from an analysis of variance of balanced data.

Items and seeds are crossed: every seed meets every item. With y_is the mean over trials of candidate - baseline for item i, seed s,

    y_is = mu + I_i + S_s + R_is,    variances item, seed, residual,

where the residual holds the item x seed interaction and the noise of trials: interaction + trial / trials. The baseline is evaluated
once and shared, so its sampling error is the same for all seeds of an item and belongs to I_i. That is right: more seeds do not average
it away. The same holds for random numbers that all seeds share for an item and trial.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

SEED_FOLD: Final = 2.5  # calibrated by scripts/simulate_coverage.py: keeps 5 and 10 seeds within 93-97%
ROUNDING: Final = 1e-12  # a variance estimate this far below 0 is float noise, not a negative estimate


@dataclass(frozen=True)
class Components:
    """Variance components of a difference, in squared fractions; none is negative."""

    item: float
    """Between items, over all seeds; includes the sampling error of the shared baseline."""
    seed: float | None
    """Between training seeds; None with one seed."""
    residual: float | None
    """Of one (item, seed) mean over trials: interaction + trial / trials. None with one seed, where the item component holds it."""
    interaction: float | None
    """Item x seed; None with one seed or one trial."""
    trial: float | None
    """Of one trial within an (item, seed); None with one trial."""
    truncated: tuple[str, ...] = ()
    """Components whose unbiased estimate was negative and stands as 0."""


@dataclass(frozen=True, eq=False)
class Anova:
    """Mean squares of the (item, seed) means, and what follows for the grand mean. Arrays share the leading axes of the data."""

    item: NDArray[np.float64]
    seed: NDArray[np.float64]
    residual: NDArray[np.float64]
    variance: NDArray[np.float64]
    """Of the grand mean."""
    df: NDArray[np.float64]
    """Of `variance`."""


def anova(cells: NDArray[np.float64]) -> Anova:
    """Two-way random-effects analysis of variance of (item, seed) means, and the variance of their grand mean.

    With n items and k seeds the mean squares MI, MS, MR have n - 1, k - 1 and (n - 1)(k - 1) degrees of freedom and the expectations
    residual + k item, residual + n seed, and residual (Searle, Casella and McCulloch 1992, ch. 4). The grand mean has variance
    item / n + seed / k + residual / (n k), estimated by

        V = (max(MI - MR, 0) + max(MS - MR, 0) + MR) / (n k),

    that is (MI + MS - MR) / (n k) unless a component is negative and stands as 0. V is a sum of mean squares M_j with coefficients
    a_j, whose degrees of freedom are V^2 / sum (a_j M_j)^2 / df_j (Satterthwaite 1946), here kept within
    [min(n, k) - 1, n - 1].

    One departure: in the degrees of freedom, not in V, MS counts `SEED_FOLD` times. With few seeds MS falls short more often than not;
    the plain formula then believes that seeds hardly matter and grants near n - 1 degrees of freedom just when V is too small. Over the
    simulated designs a nominal 95% interval so covers 93.8% at the least with 5 seeds (plain: 92.9%) and 92.5% with 3 (plain: 90.0%);
    benchmarks/statistics/coverage.md. Where neither items nor seeds differ at all, it is conservative.

    Args:
        cells: shape (..., n, k), n and k at least 2. Leading axes are separate studies.
    """
    n, k = cells.shape[-2:]
    item_means, seed_means = cells.mean(axis=-1, keepdims=True), cells.mean(axis=-2, keepdims=True)
    grand = cells.mean(axis=(-2, -1), keepdims=True)
    item = k * ((item_means - grand) ** 2).sum(axis=(-2, -1)) / (n - 1)
    seed = n * ((seed_means - grand) ** 2).sum(axis=(-2, -1)) / (k - 1)
    residual = ((cells - item_means - seed_means + grand) ** 2).sum(axis=(-2, -1)) / ((n - 1) * (k - 1))
    variance = (np.maximum(item - residual, 0) + np.maximum(seed - residual, 0) + residual) / (n * k)
    return Anova(item, seed, residual, variance, satterthwaite(item, seed, residual, n, k))


def satterthwaite(item: ArrayLike, seed: ArrayLike, residual: ArrayLike, n: int, k: int) -> NDArray[np.float64]:
    """Return the degrees of freedom of `anova`'s V from its three mean squares; n - 1 where all are 0."""
    item, seed, residual = np.asarray(item), np.asarray(seed) * SEED_FOLD, np.asarray(residual)
    by_item, by_seed = np.where(item > residual, item, 0.0), np.where(seed > residual, seed, 0.0)
    left = residual * (1.0 - (item > residual) - (seed > residual))
    spread = by_item**2 / (n - 1) + by_seed**2 / (k - 1) + left**2 / ((n - 1) * (k - 1))
    total = (by_item + by_seed + left) ** 2
    df = np.divide(total, spread, out=np.full_like(spread, n - 1.0), where=spread > 0)
    return np.clip(df, min(n, k) - 1.0, n - 1.0)


def components(cube: NDArray[np.float64], squares: Anova | None) -> Components | None:
    """Return the ANOVA estimates, those below 0 set to 0 and named."""
    items, k, trials = cube.shape
    if items == 1:
        return None
    trial = float(cube.var(axis=2, ddof=1).mean()) if trials > 1 else None
    if squares is None:
        return Components(item=float(cube.mean(axis=(1, 2)).var(ddof=1)), seed=None, residual=None, interaction=None, trial=trial)
    residual = float(squares.residual)
    raw = {"item": (float(squares.item) - residual) / k, "seed": (float(squares.seed) - residual) / items}
    if trial is not None:
        raw["interaction"] = residual - trial / trials
    kept = {name: max(value, 0.0) for name, value in raw.items()}
    truncated = tuple(name for name, value in raw.items() if value < -ROUNDING)
    return Components(**{"interaction": None, **kept}, residual=residual, trial=trial, truncated=truncated)
