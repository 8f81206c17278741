"""Paired tests and intervals over items: what a difference between two policies can and cannot say.

The item is the unit. Trials of one item are averaged before anything is counted, so that repeating an item
never looks like more items. Every value is a fraction, never a percentage. Nothing is imputed: a table with a
hole is refused, because items that are missing are seldom missing at random.

Three kinds of statement are kept apart: descriptive (`item_bootstrap`, `wilson`), tests (`mcnemar_exact`, `sign_flip`) and
gates (`zero_drop_gate`). Each carries a sentence from `COVERS` that says what it leaves out.

Both policies draw a trial of an item from one random stream (`trajectory.Key.stream`). That ties their outcomes, so fewer items differ by
chance. The tests stay exact: where both succeed on an item with the same probability, a win is as likely as a loss, however they are tied.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy import fft, stats

from agentrl.statistics.scores import StatisticsError, same_labels, score_grid, some

COVERS: Final = MappingProxyType(
    {
        "items": "Covers only the choice of items; not training seeds, sampling trials, other task families.",
        "rate": "Covers only the choice of items for this one policy; not training seeds, sampling trials or "
        "other task families, and it is no comparison of two policies.",
        "permutation": "Conditional on the training seeds at hand: a small p says that these policies differ on items like these, not that "
        "another training run would.",
        "gate": "A rule set in advance, not a test: passing does not show that nothing was lost.",
        "streams": "Start and candidates draw every item and trial from the same random stream, so that what differs is the policy: each "
        "comparison is conditional on these streams, and more trials widen that.",
    }
)
MAX_DENOMINATOR: Final = (
    1000  # k trials give multiples of 1/k; finer scores than this are resampled
)
LATTICE_TOLERANCE: Final = (
    1e-9  # a mean of k scores misses its lattice by some 1e-16, any other value by more
)
TIE_TOLERANCE: Final = (
    1e-12  # float noise of a sum or of a probability; far below one item or one resample
)
MAX_SIGN_STEPS: Final = (
    2**27
)  # additions of an exact sign-flip distribution, about 0.2 s; beyond it signs are drawn
CHUNK_CELLS: Final = 2**22  # resampled indices held at once: 32 MiB


@dataclass(frozen=True, eq=False)
class Paired:
    """Two policies on the same items, one mean over trials per item. All values are fractions."""

    n: int
    """Items."""
    trials: int
    """Trials averaged per item, the same number for every item and both policies."""
    wins: int
    """Items on which the candidate's mean is higher."""
    losses: int
    """Items on which the candidate's mean is lower."""
    ties: int
    """Items on which both means are equal."""
    baseline_mean: float
    """Mean over items, in [0, 1]."""
    candidate_mean: float
    """Mean over items, in [0, 1]."""
    difference: float
    """Mean of the item differences, candidate - baseline, in [-1, 1]."""
    differences: pd.Series
    """Candidate - baseline per item, in [-1, 1], indexed by item in sorted order."""


@dataclass(frozen=True)
class Interval:
    """A two-sided interval and the sentence that limits it."""

    low: float
    high: float
    method: str
    """`exact-percentile-bootstrap`, `resampled-percentile-bootstrap` or `wilson` here; `inference.py` has more."""
    note: str
    """What the interval does not cover, and whether it is degenerate."""
    confidence: float = 0.95
    seed: int | None = None
    """Seed of the resampling; None where nothing was drawn."""
    resamples: int | None = None
    """Number of resamples; None where nothing was drawn."""


@dataclass(frozen=True)
class Permutation:
    """A two-sided permutation p value and the sentence that limits it."""

    p: float
    """In (0, 1]."""
    method: str
    """`exact-sign-flip` or `monte-carlo-sign-flip`."""
    note: str
    seed: int | None = None
    """Seed of the drawn signs; None where all were counted."""
    resamples: int | None = None
    """Number of drawn sign vectors; None where all were counted."""


@dataclass(frozen=True)
class Gate:
    """The outcome of a rule that was set before the data were seen."""

    passed: bool
    difference: float
    """Candidate - baseline, a fraction."""
    false_alarm_rate: float | None
    """Estimated probability that an equally accurate model fails; None where it cannot be computed."""
    note: str


@dataclass(frozen=True, eq=False)
class Distribution:
    """A discrete distribution on an ascending support; probabilities are >= 0 and sum to 1."""

    support: NDArray[np.float64]
    probability: NDArray[np.float64]

    def cdf(self, value: float) -> float:
        """Return P(D <= value); a support point within 1e-12 above `value` counts as equal to it."""
        return float(self.probability[self.support <= value + TIE_TOLERANCE].sum())

    def quantile(self, q: float) -> float:
        """Return the smallest support point d with P(D <= d) >= q.

        Where P(D <= d) equals q in exact arithmetic, float noise would decide between d and its neighbour, a
        whole item apart. So a shortfall up to 1e-12 counts as equal.
        """
        reached = np.cumsum(self.probability) >= q - TIE_TOLERANCE
        return float(self.support[int(np.argmax(reached))])


def paired(baseline: pd.DataFrame, candidate: pd.DataFrame) -> Paired:
    """Align two score tables by item and count wins, losses and ties of the item means.

    Both tables have the columns item (str), trial (int) and score (in [0, 1]), one row per (item, trial), and
    hold the same trials of the same items. A `seed` column may stand beside them if it has one value.

    Raises:
        StatisticsError: a hole, a duplicate, a score that is no number in [0, 1], or unequal items or trials.
    """
    before, after = score_grid(baseline, "baseline"), score_grid(candidate, "candidate")
    same_labels(before.index, after.index, "items")
    same_labels(before.columns, after.columns, "trials")
    base_items, candidate_items = before.mean(axis=1), after.mean(axis=1)
    differences = (candidate_items - base_items).rename("difference")
    differences = differences.mask(differences.abs() <= TIE_TOLERANCE, 0.0)
    wins, losses = int((differences > 0).sum()), int((differences < 0).sum())
    return Paired(
        n=len(differences),
        trials=before.shape[1],
        wins=wins,
        losses=losses,
        ties=len(differences) - wins - losses,
        baseline_mean=float(base_items.mean()),
        candidate_mean=float(candidate_items.mean()),
        difference=float(differences.mean()),
        differences=differences,
    )


def mean_distribution(values: ArrayLike, draws: int | None = None) -> Distribution | None:
    """Return the exact distribution of the mean of `draws` values drawn with replacement.

    With values v_i = k_i / m for whole k_i, the sum of the draws has the `draws`-fold convolution of the
    empirical distribution: p_sum = IFFT(FFT(p)^draws), zero-padded so that nothing wraps around.

    Args:
        values: at least one finite number in [-1, 1].
        draws: at least 1; by default as many as there are values, which is the bootstrap of their mean.

    Returns:
        None where no denominator m up to 1000 puts every value on the lattice.

    Raises:
        StatisticsError: `values` is not such a list, or `draws` is below 1.
    """
    numbers = _checked_values(values)
    draws = len(numbers) if draws is None else draws
    if draws < 1:
        raise StatisticsError(f"draws is {draws}, expected at least 1")
    denominator = _denominator(numbers)
    if denominator is None:
        return None
    whole = np.rint(numbers * denominator).astype(np.int64)
    offsets = whole - whole.min()
    stride = int(np.gcd.reduce(offsets)) or 1
    probability = _convolve_power(np.bincount(offsets // stride) / len(whole), draws)
    sums = draws * int(whole.min()) + stride * np.arange(len(probability))
    return Distribution(sums / (denominator * draws), probability)


def item_bootstrap(
    differences: ArrayLike, confidence: float = 0.95, *, seed: int = 0, resamples: int = 100_000
) -> Interval:
    """Return the percentile bootstrap interval of the mean of the item differences.

    Low and high are the smallest d with P(D <= d) >= (1 - c) / 2 and >= (1 + c) / 2 at confidence c, D being
    the mean of n differences drawn with replacement (Efron and Tibshirani 1993, ch. 13). Exact where the
    differences share a denominator up to 1000, else resampled from `seed`.

    Swapping the policies mirrors the interval unless P(D <= d) equals one of the two levels exactly: an end
    then moves to a neighbouring support point. [0, 1] at 0.5 gives [0, 0.5], but [0, -1] gives [-1, -0.5].

    Raises:
        StatisticsError: a difference outside [-1, 1], none at all, or a confidence outside (0, 1).
    """
    values = _checked_values(differences)
    check_open_unit(confidence, "confidence")
    note = _items_note(values)
    levels = ((1 - confidence) / 2, (1 + confidence) / 2)
    exact = mean_distribution(values)
    if exact is not None:
        low, high = (exact.quantile(level) for level in levels)
        return Interval(low, high, "exact-percentile-bootstrap", note, confidence)
    means = _resampled_means(values, seed, resamples)
    low, high = (float(np.quantile(means, level, method="inverted_cdf")) for level in levels)
    return Interval(low, high, "resampled-percentile-bootstrap", note, confidence, seed, resamples)


def mcnemar_exact(wins: int, losses: int) -> float:
    """Return the two-sided exact McNemar p value.

    p = min(1, 2 P(X <= min(wins, losses))) with X ~ Binomial(wins + losses, 1/2); 1 if no pair is discordant.
    With several trials per item it is the sign test of the item means. It asks whether the policies differ on
    items like these; training seeds are not in it. Outcomes tied by a shared random stream are what pairs are: p stays exact.

    Raises:
        StatisticsError: a negative count.
    """
    if wins < 0 or losses < 0:
        raise StatisticsError(f"wins {wins} and losses {losses} must both be at least 0")
    if wins + losses == 0:
        return 1.0
    return float(stats.binomtest(wins, wins + losses, 0.5).pvalue)


def sign_flip(differences: ArrayLike, *, seed: int = 0, resamples: int = 100_000) -> Permutation:
    """Return the two-sided paired permutation test over items: P(|sum of +-d_i| >= |sum of d_i|) under random signs.

    Swapping the policies of an item flips the sign of its difference, so the reference set is all 2^n sign vectors, all counted where the
    differences share a denominator up to 1000: the sum of the +-k_i has the convolution of n two-point distributions. The terms
    are positive, so small p values keep their relative accuracy, which an FFT would lose. Else signs are drawn and
    p = (1 + hits) / (1 + resamples) (Phipson and Smyth 2010). For 0/1 outcomes of one trial it is `mcnemar_exact`.

    Exchangeable, so exact, if both policies have the same trials: one seed. The mean over k seeds against one shared baseline has k
    times the trials: under equal policies the differences then have mean 0 but are a little skewed, and p is approximate.

    Args:
        differences: item means of candidate - baseline, in [-1, 1].
        seed: of the drawn signs.
        resamples: at least 1; unused where all are counted.

    Raises:
        StatisticsError: a difference outside [-1, 1], none at all, or resamples below 1.
    """
    values = _checked_values(differences)
    denominator = _denominator(values)
    if denominator is not None:
        sizes = np.rint(values * denominator).astype(np.int64)
        if np.count_nonzero(sizes) * int(np.abs(sizes).sum()) <= MAX_SIGN_STEPS:
            return Permutation(_exact_sign_flip(sizes), "exact-sign-flip", COVERS["permutation"])
    p = _drawn_sign_flip(values, seed, resamples)
    return Permutation(p, "monte-carlo-sign-flip", COVERS["permutation"], seed, resamples)


def smallest_significant_wins(n: int, alpha: float = 0.05) -> int | None:
    """Return the fewest wins without a loss, among n items, whose McNemar p value is at most alpha.

    None where even n wins to 0 losses are not enough. The p value is 2^(1 - wins), so 6 at alpha 0.05.

    Raises:
        StatisticsError: n below 1 or alpha outside (0, 1).
    """
    check_items(n)
    check_open_unit(alpha, "alpha")
    return next(
        (wins for wins in range(1, n + 1) if mcnemar_exact(wins, 0) <= alpha + TIE_TOLERANCE), None
    )


def zero_drop_gate(pair: Paired) -> Gate:
    """Pass if and only if the candidate's mean is not below the baseline's.

    The false-alarm rate is P(sum < 0) for n draws from the observed differences with random signs. For 0/1
    outcomes that is `zero_drop_false_alarm(n, (wins + losses) / n)`; several trials weigh the sizes in.
    """
    values = pair.differences.to_numpy(dtype=np.float64)
    null = mean_distribution(np.concatenate([values, -values]), draws=pair.n)
    rate = None if null is None else float(null.probability[null.support < -TIE_TOLERANCE].sum())
    source = "The false-alarm rate is a plug-in estimate from the observed differences."
    if rate is None:
        source = (
            f"No false-alarm rate: the differences share no denominator up to {MAX_DENOMINATOR}."
        )
    elif pair.wins + pair.losses == 0:
        source += " No item differed, so its 0 is no promise."
    return Gate(
        pair.difference >= -TIE_TOLERANCE, pair.difference, rate, f"{COVERS['gate']} {source}"
    )


def zero_drop_false_alarm(n: int, discordance: float) -> float:
    """Return the probability that an equally accurate model fails the zero-drop gate, in [0, 0.5).

    The number of discordant items is K ~ Binomial(n, discordance), each as likely a win as a loss:
    P(losses > wins) = sum over k of P(K = k) P(Binomial(k, 1/2) > k / 2). 64 items at 3/64 give 0.38.

    `discordance` is the share of items on which two equally accurate policies differ although both draw from the same stream; 0 for an
    unchanged policy, which never fails. Sampled from streams of their own, even equal policies differ much more often
    (benchmarks/demo/streams.md).

    Raises:
        StatisticsError: n below 1 or discordance outside [0, 1].
    """
    check_items(n)
    if not 0 <= discordance <= 1:
        raise StatisticsError(f"discordance is {discordance}, expected a fraction in [0, 1]")
    discordant = np.arange(n + 1)
    more_losses = stats.binom.sf(discordant // 2, discordant, 0.5)
    return float(stats.binom.pmf(discordant, n, discordance) @ more_losses)


def wilson(successes: int, n: int, confidence: float = 0.95) -> Interval:
    """Return Wilson's score interval, without continuity correction, for one rate over n items (Wilson 1927).

    `n` counts items with one 0/1 outcome each; trials of one item are not independent: never add them.

    Raises:
        StatisticsError: n below 1, successes outside [0, n], or a confidence outside (0, 1).
    """
    check_items(n)
    check_open_unit(confidence, "confidence")
    if not 0 <= successes <= n:
        raise StatisticsError(f"successes is {successes}, expected 0 to {n}")
    bounds = stats.binomtest(successes, n).proportion_ci(confidence, method="wilson")
    return Interval(float(bounds.low), float(bounds.high), "wilson", COVERS["rate"], confidence)


def _denominator(values: NDArray[np.float64]) -> int | None:
    """Return the smallest m up to 1000 for which every value is a whole number of 1/m, else None."""
    for denominator in range(1, MAX_DENOMINATOR + 1):
        scaled = values * denominator
        if np.all(np.abs(scaled - np.rint(scaled)) <= LATTICE_TOLERANCE):
            return denominator
    return None


def _convolve_power(probability: NDArray[np.float64], power: int) -> NDArray[np.float64]:
    """Return the `power`-fold convolution of a probability vector with itself; absolute error about 1e-14."""
    length = power * (len(probability) - 1) + 1
    padded = fft.next_fast_len(length, real=True)
    raw = fft.irfft(fft.rfft(probability, padded) ** power, padded)[:length]
    positive = np.clip(
        raw, 0.0, None
    )  # cells that are zero come back as tiny numbers of either sign
    return positive / positive.sum()


def _resampled_means(values: NDArray[np.float64], seed: int, resamples: int) -> NDArray[np.float64]:
    """Return `resamples` means of len(values) draws with replacement, in chunks of bounded memory."""
    if resamples < 1:
        raise StatisticsError(f"resamples is {resamples}, expected at least 1")
    rng = np.random.Generator(np.random.Philox(seed))
    rows = max(1, CHUNK_CELLS // len(values))
    sizes = [min(rows, resamples - start) for start in range(0, resamples, rows)]
    drawn = (values[rng.integers(len(values), size=(size, len(values)))] for size in sizes)
    return np.concatenate([chunk.mean(axis=1) for chunk in drawn])


def _exact_sign_flip(sizes: NDArray[np.int64]) -> float:
    """Return the sign-flip p value of whole numbers, through the distribution of the sum of those with a plus sign."""
    moved = np.sort(np.abs(sizes[sizes != 0]))
    if not len(moved):
        return 1.0
    moved //= np.gcd.reduce(moved)
    probability = np.ones(1)
    for size in moved.tolist():
        grown = np.zeros(len(probability) + size)
        grown[: len(probability)] = probability / 2
        grown[size:] += probability / 2
        probability = grown
    observed = abs(int(sizes.sum())) // int(np.gcd.reduce(np.abs(sizes)))
    return min(1.0, 2 * float(probability[: (len(probability) - 1 - observed) // 2 + 1].sum()))


def _drawn_sign_flip(values: NDArray[np.float64], seed: int, resamples: int) -> float:
    """Return the sign-flip p value over drawn signs, the observed ones counted among them."""
    if resamples < 1:
        raise StatisticsError(f"resamples is {resamples}, expected at least 1")
    rng = np.random.Generator(np.random.Philox(seed))
    rows, hits, reached = (
        max(1, CHUNK_CELLS // len(values)),
        1,
        abs(values.sum()) - TIE_TOLERANCE * len(values),
    )
    for start in range(0, resamples, rows):
        signs = rng.integers(2, size=(min(rows, resamples - start), len(values)), dtype=np.int8)
        hits += int(np.count_nonzero(np.abs((2 * signs - 1) @ values) >= reached))
    return hits / (1 + resamples)


def _items_note(values: NDArray[np.float64]) -> str:
    """Return the sentence for an item bootstrap, with a warning where the bootstrap cannot spread."""
    if len(values) == 1:
        return f"{COVERS['items']} One item only: a point, which says nothing about other items."
    if np.ptp(values) <= TIE_TOLERANCE:
        return f"{COVERS['items']} All {len(values)} items differ alike: a point, which is no certainty."
    return COVERS["items"]


def _checked_values(values: ArrayLike) -> NDArray[np.float64]:
    """Return the values as a flat float array; refuse none, more than one axis, or any outside [-1, 1]."""
    numbers = np.asarray(values, dtype=np.float64)
    if numbers.ndim != 1 or numbers.size == 0:
        raise StatisticsError(
            f"expected a non-empty list of item differences, got shape {numbers.shape}"
        )
    outside = numbers[~(np.abs(numbers) <= 1)]  # NaN compares false
    if outside.size:
        found = some(map(str, outside.tolist()))
        raise StatisticsError(f"item differences must lie in [-1, 1], found {found}")
    return numbers


def check_open_unit(value: float, name: str) -> None:
    """Refuse a level that is not strictly between 0 and 1; 95 for 0.95 is the usual slip."""
    if not 0 < value < 1:
        raise StatisticsError(f"{name} is {value}, expected a fraction strictly between 0 and 1")


def check_items(n: int) -> None:
    """Refuse a number of items below 1."""
    if n < 1:
        raise StatisticsError(f"n is {n}, expected at least 1 item")
