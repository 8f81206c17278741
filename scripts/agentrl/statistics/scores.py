"""Score tables: complete or refused, never filled in; candidates of several seeds beside one baseline; pass^k."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import comb

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from agentrl.evidence.errors import StudyError

SHOWN = 5  # offenders that an error message names


class StatisticsError(StudyError, ValueError):
    """A table or argument from which no honest statistic follows; the message names what is wrong."""


def score_grid(table: pd.DataFrame, name: str) -> pd.DataFrame:
    """Return the checked scores as floats, one row per item and one column per trial, both sorted.

    Args:
        table: columns item (str), trial (int) and score (in [0, 1]), one row per (item, trial). A `seed` column may stand beside
            them if it has one value.
        name: what an error message calls the table.

    Raises:
        StatisticsError: a hole, a duplicate, several seeds, or a score that is no number in [0, 1].
    """
    _check_columns(table, name, "score")
    if "seed" in table.columns and table["seed"].nunique(dropna=False) > 1:
        seeds = some(map(str, table["seed"].unique()))
        raise StatisticsError(f"{name}: seeds {seeds} in one table; compare one seed at a time")
    _check_range(table, name, "score", 0)
    _check_complete(table, name, ["item", "trial"])
    return table.astype({"score": np.float64}).pivot(index="item", columns="trial", values="score")


def seed_differences(
    baseline: pd.DataFrame, candidates: Mapping[int, pd.DataFrame]
) -> pd.DataFrame:
    """Return candidate score - baseline score of the same item and trial, one row per (item, seed, trial), in [-1, 1].

    Trial by trial, because both sides of a trial draw from one random stream: what it does to both cancels. The baseline's trials are
    shared by all seeds, so what is left of their noise becomes part of how items differ, not of how seeds differ (`variance.py`).

    Args:
        baseline: score table, see `score_grid`.
        candidates: training seed -> score table over the same items and trials.

    Raises:
        StatisticsError: no seed, or a table that is refused or differs from the baseline in items or trials.
    """
    if not candidates:
        raise StatisticsError("no candidate seed; expected at least one score table")
    before = score_grid(baseline, "baseline")
    parts = []
    for seed, table in sorted(candidates.items()):
        after = score_grid(table, f"candidate seed {seed}")
        same_labels(before.index, after.index, "items", f"candidate seed {seed}")
        same_labels(before.columns, after.columns, "trials", f"candidate seed {seed}")
        part = after.sub(before).stack().rename("difference").reset_index()
        parts.append(part.assign(seed=seed))
    return pd.concat(parts, ignore_index=True)[["item", "seed", "trial", "difference"]]


def difference_cube(differences: pd.DataFrame) -> tuple[NDArray[np.float64], list[int]]:
    """Return item x seed x trial differences as an array, items and trials sorted, and the seeds in its order.

    Args:
        differences: columns item (str), seed (int), trial (int), difference (in [-1, 1]), as `seed_differences` returns them.

    Raises:
        StatisticsError: a missing or repeated (item, seed, trial), or a value that is no number in [-1, 1].
    """
    name, keys = "differences", ["item", "seed", "trial"]
    _check_columns(differences, name, "difference", ("seed",))
    _check_range(differences, name, "difference", -1)
    _check_complete(differences, name, keys)
    ordered = differences.sort_values(keys)
    seeds = sorted(differences["seed"].unique().tolist())
    shape = (differences["item"].nunique(), len(seeds), differences["trial"].nunique())
    return ordered["difference"].to_numpy(dtype=np.float64).reshape(shape), seeds


def pass_hat_k(table: pd.DataFrame) -> dict[int, float]:
    """Return pass^k for k = 1 .. trials: the chance that k trials of one item all succeed, averaged over items.

    Per item with c successes in n trials C(c, k) / C(n, k), which is unbiased (tau-bench, Yao et al. 2024, eq. 1). pass^1 is the
    success rate. It falls with k; pass@k, which rises with k, is something else. One policy at a time: trials of two seeds are trials of
    two policies, so average the pass^k of the seeds instead.

    Raises:
        StatisticsError: a table that `score_grid` refuses, or a score other than 0 and 1.
    """
    grid = score_grid(table, "pass^k")
    if not grid.isin([0.0, 1.0]).to_numpy().all():
        raise StatisticsError(
            "pass^k: a score lies between 0 and 1; it counts successes, so expected only 0 and 1"
        )
    trials, successes = grid.shape[1], [int(count) for count in grid.sum(axis=1)]
    return {
        k: sum(comb(count, k) for count in successes) / (comb(trials, k) * len(successes))
        for k in range(1, trials + 1)
    }


def same_labels(
    baseline: pd.Index, candidate: pd.Index, what: str, candidate_name: str = "candidate"
) -> None:
    """Refuse labels that only one of the two tables has, naming them and the table that lacks them."""
    for name, have, want in (
        (candidate_name, candidate, baseline),
        ("baseline", baseline, candidate),
    ):
        lacking = want.difference(have).tolist()
        if lacking:
            names = some(map(repr, lacking))
            raise StatisticsError(f"{name}: lacks the {what} {names}; evaluate both policies alike")


def some(parts: Iterable[str]) -> str:
    """Return the first few parts and how many more there are."""
    listed = list(parts)
    more = f" and {len(listed) - SHOWN} more" if len(listed) > SHOWN else ""
    return ", ".join(listed[:SHOWN]) + more


def _check_columns(table: pd.DataFrame, name: str, value: str, further: Sequence[str] = ()) -> None:
    """Refuse a table that is empty, lacks a column, or holds the wrong type."""
    absent = [
        column for column in ("item", *further, "trial", value) if column not in table.columns
    ]
    if absent:
        raise StatisticsError(
            f"{name}: no column {', '.join(absent)}; found {some(map(str, table.columns))}"
        )
    if table.empty:
        raise StatisticsError(f"{name}: no rows")
    wrong = [item for item in table["item"] if not isinstance(item, str)]
    if wrong:
        raise StatisticsError(
            f"{name}: item must be str, found {some(map(repr, wrong))}; read it as str"
        )
    for column in (*further, "trial"):
        if not pd.api.types.is_integer_dtype(table[column]) or table[column].isna().any():
            raise StatisticsError(
                f"{name}: {column} must be a whole number, found {table[column].dtype} or a gap"
            )
    if not pd.api.types.is_numeric_dtype(table[value]):
        raise StatisticsError(f"{name}: {value} must be a number, found {table[value].dtype}")


def _check_range(table: pd.DataFrame, name: str, value: str, low: int) -> None:
    """Refuse a value outside [low, 1], NaN included."""
    outside = table[~table[value].between(low, 1)]  # NaN is between nothing
    if len(outside):
        cells = (
            f"{row.item!r} trial {row.trial}: {getattr(row, value)}" for row in outside.itertuples()
        )
        raise StatisticsError(
            f"{name}: {value} is no number in [{low}, 1] for {some(cells)}; rerun these"
        )


def _check_complete(table: pd.DataFrame, name: str, keys: list[str]) -> None:
    """Refuse a table that does not hold every combination of its keys exactly once."""
    rows = pd.MultiIndex.from_frame(table[keys])
    twice = rows[rows.duplicated()].unique()
    if len(twice):
        raise StatisticsError(f"{name}: more than one row for {_cells(twice)}; keep one of each")
    levels = [rows.unique(level) for level in range(len(keys))]
    if len(rows) < np.prod([len(level) for level in levels]):
        missing = pd.MultiIndex.from_product(levels).difference(rows)
        raise StatisticsError(
            f"{name}: no row for {_cells(missing)}; rerun these, nothing is imputed"
        )


def _cells(keys: pd.MultiIndex) -> str:
    """Return the first (item, ..., trial) keys as text."""
    return some(
        f"{item!r} "
        + " ".join(f"{key} {value}" for key, value in zip(keys.names[1:], rest, strict=True))
        for item, *rest in keys
    )
