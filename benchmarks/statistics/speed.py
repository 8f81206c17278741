"""Seconds and memory of the statistics on one core: every part on 250 items x 16 trials x 5 seeds, and how the bootstrap grows."""

import argparse
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd

from agentrl.statistics.noninferiority import non_inferiority
from agentrl.statistics.paired import item_bootstrap, sign_flip
from agentrl.statistics.power import Design, assumed_spread, sentences
from agentrl.statistics.scores import pass_hat_k, seed_differences
from agentrl.statistics.two_way import crossed_bootstrap, two_way_mean

ITEMS, TRIALS, SEEDS = 250, 16, 5
RESAMPLES = 10_000
REPEATS = 9


def scores(items: int, rng: np.random.Generator, rate: np.ndarray) -> pd.DataFrame:
    """A score table of 0/1 outcomes with these success rates per item."""
    names = [f"item-{index:05d}" for index in range(items)]
    outcomes = (rng.random((items, TRIALS)) < rate[:, None]).astype(np.int64)
    return pd.DataFrame(
        {
            "item": np.repeat(names, TRIALS),
            "trial": np.tile(np.arange(TRIALS), items),
            "score": outcomes.ravel(),
        }
    )


def study(items: int) -> tuple[pd.DataFrame, dict[int, pd.DataFrame]]:
    """Baseline and candidates of five seeds."""
    rng = np.random.default_rng(0)
    rate = rng.beta(2, 3, items)
    return scores(items, rng, rate), {
        seed: scores(items, rng, np.clip(rate + 0.05, 0, 1)) for seed in range(SEEDS)
    }


def measure(call: Callable[[], object]) -> tuple[float, float, float]:
    """Best wall seconds and median CPU seconds of a few calls, and the peak MiB of one more that is traced."""
    wall, cpu = [], []
    for _ in range(REPEATS):
        started = time.perf_counter(), time.process_time()
        call()
        wall.append(time.perf_counter() - started[0])
        cpu.append(time.process_time() - started[1])
    tracemalloc.start()
    call()
    peak = tracemalloc.get_traced_memory()[1] / 2**20
    tracemalloc.stop()
    return min(wall), float(np.median(cpu)), peak


def parts() -> list[str]:
    """One table row per part."""
    baseline, candidates = study(ITEMS)
    differences = seed_differences(baseline, candidates)
    items = differences.groupby("item")["difference"].mean()
    estimate, design = two_way_mean(differences), Design(ITEMS, TRIALS, SEEDS)
    calls = {
        "tables to differences (checks, alignment)": lambda: seed_differences(baseline, candidates),
        "two-way t interval": lambda: two_way_mean(differences),
        "exact sign-flip test": lambda: sign_flip(items),
        "exact item bootstrap": lambda: item_bootstrap(items),
        "non-inferiority": lambda: non_inferiority(estimate, 0.05),
        "pass^k, k = 1 to 16": lambda: pass_hat_k(baseline),
        "plan, three sentences": lambda: sentences(
            design, 0.05, 0.2, assumed_spread(0.2, 0.03), 64, [0.03, 0.1]
        ),
    }
    return [row(name, *measure(call)) for name, call in calls.items()]


def growth() -> list[str]:
    """One table row per size of the crossed bootstrap."""
    rows = []
    for factor, resamples in (
        (1, RESAMPLES),
        (2, RESAMPLES),
        (4, RESAMPLES),
        (1, 2 * RESAMPLES),
        (1, 4 * RESAMPLES),
    ):
        differences = seed_differences(*study(factor * ITEMS))
        measured = measure(
            lambda table=differences, count=resamples: crossed_bootstrap(table, resamples=count)
        )
        rows.append(
            row(f"crossed bootstrap, {factor * ITEMS:,} items, {resamples:,} resamples", *measured)
        )
    return rows


def row(name: str, wall: float, cpu: float, peak: float) -> str:
    """A table row."""
    return f"| {name} | {wall:.3f} | {cpu:.3f} | {peak:.0f} |"


def main() -> None:
    """Measure and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/statistics/speed.md"))
    out = parser.parse_args().out
    lines = [
        "# Speed of the statistics",
        "",
        "`OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 python -m benchmarks.statistics.speed`, on a machine that others used too.",
        f"Where nothing else is said, {ITEMS} items x {TRIALS} trials x {SEEDS} seeds; wall seconds are the best of {REPEATS} calls,",
        "CPU seconds their median, memory is the peak that a call allocates.",
        "",
        "| part | wall s | CPU s | peak MiB |",
        "| --- | ---: | ---: | ---: |",
        *parts(),
        *growth(),
    ]
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(out.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
