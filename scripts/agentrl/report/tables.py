"""The pilot's tables: which measure stands in which row under which name, measures as rows and policies as columns.

`tests/pilot_rows.py` keeps the row names by hand. Everything here follows from `summary.json`; seconds, GPU, versions and commit do not
follow from the evidence and stand in the tables of `runs.py`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from agentrl.judgement.comparison import BASELINE, RETENTION
from agentrl.report.figures import points, probability

NONE = ""
"""Cell of a row that does not apply to a column."""
Summary = Mapping[str, Any]
Cell = Callable[[str], object]
"""Value of one row by column."""

AGENT = {
    "episodes": "episodes",
    "strict_success": "strict success",
    "valid_workflow": "valid workflow",
    "correct_answer": "correct answer",
    "lookup": "lookup",
    "calculation": "calculation",
    "tool_calls": "tool calls",
    "tool_errors": "tool errors",
    "malformed_finals": "malformed finals",
    "malformed_uncapped": "malformed uncapped",
    "turn_cap": "turn cap",
    "token_cap": "token cap",
    "observation_cap": "observation cap",
    "assistant_tokens": "assistant tokens",
    "external_tokens": "external tokens",
    "infrastructure_errors": "infrastructure errors",
}
"""Count of `evaluation.measures` -> row."""
ANSWERS = {
    "items": "items",
    "correct": "correct",
    "flexible_correct": "flexible extraction",
    "malformed_finals": "malformed finals",
    "malformed_uncapped": "malformed uncapped",
    "token_cap": "token cap",
    "assistant_tokens": "assistant tokens",
    "infrastructure_errors": "infrastructure errors",
}
"""Count of `retention.measures` -> row."""
TRAINING = {
    "reward": "reward",
    "steps": "steps",
    "episodes": "episodes",
    "unique_tasks": "unique tasks",
    "groups": "groups",
    "mixed_groups": "groups with reward variation",
    "mean_reward": "mean reward",
    "strict_success": "strict success",
    "steps_with_gradient": "steps with nonzero gradient",
    "adapter_tensors": "adapter tensors",
    "adapter_tensors_changed": "adapter tensors changed",
    "infrastructure_errors": "infrastructure errors",
}
"""Fact of a training -> row."""
MERGE = {
    "tensors": "tensors",
    "changed": "tensors changed",
    "identical": "tensors identical",
    "targets": "targets",
    "tied_head": "tied head",
    "largest_logit_difference": "largest logit difference",
    "tolerance": "tolerated logit difference",
    "update_kept": "update kept",
    "weights_moved": "weights moved",
}
"""Fact of a merge audit -> row."""
OVERLAP = (
    "Malformed finals are all episodes without an accepted answer, capped or not: the sum of malformed uncapped, turn cap, token cap and "
    "observation cap. So these rows overlap; the other episodes have an answer, right or wrong."
)
ANSWERS_OVERLAP = (
    "Malformed finals are all outputs without an accepted answer: the sum of malformed uncapped and token cap. Flexible extraction reads "
    "the last number of any output."
)
COMPLETE = (
    "Infrastructure errors are planned episodes without a record: an engine or worker fault stops its stage and is never a score, so a "
    "finished stage has 0."
)
REPLAYED = "Replayed calls and checked tokens are verification's own: it executed each call again and derived each token's role anew."
CONSISTS = (
    "Gained and lost count episodes, paired by item and trial, by what changed of strict success: the workflow's validity only, the "
    "answer's correctness only, or both."
)
EXACT = "The p value is exact (McNemar for one trial, sign flips for several) and conditional on the training seed."
NO_SUCCESS_RATE = "Mean reward is shaped (or random) and is no success rate; strict training success stands beside it."


@dataclass(frozen=True)
class Table:
    """One table of Markdown."""

    title: str
    note: str
    """What a reader must know of its rows."""
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[str, ...]], ...]
    """(name, one cell per column)."""
    head: str = "measure"
    """What the rows are."""

    @property
    def names(self) -> list[str]:
        """Row names from top to bottom."""
        return [name for name, _ in self.rows]

    def markdown(self) -> str:
        """Heading, rows and note."""
        lines = [(self.head, self.columns), ("---", ("---",) * len(self.columns)), *self.rows]
        body = "\n".join(f"| {' | '.join([name, *cells])} |" for name, cells in lines)
        return f"## {self.title}\n{body}\n" + (f"\n{self.note}\n" if self.note else "")


def table(
    title: str, note: str, columns: list[str], rows: Mapping[str, Cell], head: str = "measure"
) -> Table:
    """A table from one function per row.

    Args:
        title: its heading.
        note: a sentence below it, or "".
        columns: policies by name.
        rows: row name -> value of a column; None leaves the cell empty.
        head: what the rows are.
    """
    made = tuple(
        (name, tuple(_shown(value(column)) for column in columns)) for name, value in rows.items()
    )
    return Table(
        title,
        note,
        tuple("start" if column == BASELINE else column for column in columns),
        made,
        head,
    )


def _shown(value: object) -> str:
    if value is None:
        return NONE
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def pilot_tables(summary: Summary) -> list[Table]:
    """Every table of the pilot that follows from the evidence, in the order of the pipeline."""
    measures = sorted(
        {measure for found in summary["policies"].values() for measure in found} - {RETENTION}
    )
    evaluations = [
        made for measure in measures for made in (agent(summary, measure), change(summary, measure))
    ]
    return [
        preflight(summary),
        training(summary),
        merge(summary),
        *evaluations,
        retention(summary),
        release(summary),
    ]


def preflight(summary: Summary) -> Table:
    """What the start policy did on training tasks before training."""
    found = summary["preflight"]
    groups: dict[str, Cell] = {
        "groups": lambda _: found["groups"],
        "generations per group": lambda _: found["group_size"],
    }
    mixed = {
        f"mixed groups, {reward} reward": _constant(number)
        for reward, number in sorted(found["mixed_groups"].items())
    }
    counts = {name: _constant(found["counts"][key]) for key, name in AGENT.items()}
    return table(
        "Preflight on training tasks",
        OVERLAP,
        [BASELINE],
        groups | mixed | counts | _replayed(summary, lambda _: "preflight"),
    )


def _constant(value: object) -> Cell:
    return lambda _: value


def agent(summary: Summary, measure: str) -> Table:
    """Agent measures of every policy that was evaluated on one split."""
    policies = summary["policies"]
    rows = {name: _field(policies, measure, key) for key, name in AGENT.items()}
    rows |= _replayed(summary, lambda policy: f"policies/{policy}/{measure}")
    note = f"{OVERLAP} {COMPLETE} {REPLAYED}"
    return table(
        f"Agent evaluation, {split(measure)}",
        note,
        [name for name in policies if measure in policies[name]],
        rows,
    )


def split(measure: str) -> str:
    """`agent-test` -> test."""
    return measure.removeprefix("agent-")


def change(summary: Summary, measure: str) -> Table:
    """What a split's paired change is, and what it consists of."""
    pairs = summary["comparisons"]
    rows = _paired(pairs, measure)
    for side in ("gained", "lost"):
        rows |= {
            f"{side} by {part}": _field(pairs, measure, "composition", side, part)
            for part in ("workflow", "answer", "both")
        }
    return table(
        f"Paired change against start, {split(measure)}",
        f"{CONSISTS} {EXACT}",
        [n for n in pairs if measure in pairs[n]],
        rows,
    )


def _field(found: Mapping[str, Any], *path: str) -> Cell:
    """The value at `found[column][path]`."""

    def read(column: str) -> object:
        value = found[column]
        for key in path:
            value = value[key]
        return value

    return read


def _paired(pairs: Mapping[str, Any], measure: str) -> dict[str, Cell]:
    def interval(name: str) -> str:
        found = pairs[name][measure]["interval"]
        return f"[{points(found['low'])}, {points(found['high'])}]"

    def exact_p(name: str) -> str:
        found = pairs[name][measure]
        return probability(
            found["sign_flip"]["p"] if found["mcnemar_p"] is None else found["mcnemar_p"]
        )

    counts = {
        row: _field(pairs, measure, row) for row in ("items", "trials", "wins", "losses", "ties")
    }
    change = {
        "change, points": lambda name: points(pairs[name][measure]["difference"]),
        "interval, points": interval,
    }
    return {**counts, **change, "exact p": exact_p}


def retention(summary: Summary) -> Table:
    """Mathematics without tools: both readings of an answer, and the paired change."""
    policies, pairs = summary["policies"], summary["comparisons"]
    rows = {name: _field(policies, RETENTION, key) for key, name in ANSWERS.items()}
    rows |= {
        "checked tokens": _replayed(summary, lambda policy: f"policies/{policy}/{RETENTION}")[
            "checked tokens"
        ]
    }
    paired = {
        name: cell
        for name, cell in _paired(pairs, RETENTION).items()
        if name not in ("items", "trials")
    }
    paired["zero-drop gate"] = lambda name: (
        "passed" if pairs[name][RETENTION]["zero_drop_gate"]["passed"] else "FAILED"
    )
    rows |= {name: _unless_baseline(cell) for name, cell in paired.items()}
    return table("Retention (no tools)", f"{ANSWERS_OVERLAP} {EXACT}", list(policies), rows)


def _unless_baseline(cell: Cell) -> Cell:
    return lambda column: None if column == BASELINE else cell(column)


def training(summary: Summary) -> Table:
    """Every training run, with the warm-up before it."""
    runs = summary["training"]

    def warmed(name: str) -> object:
        return 0 if runs[name]["warmup"] is None else runs[name]["warmup"]["steps"]

    facts = {name: _field(runs, key) for key, name in TRAINING.items()}
    rows = {
        "warm-up steps": warmed,
        **facts,
        **_replayed(summary, lambda name: f"arms/{name}/train"),
    }
    rows |= {
        f"warm-up, {row}": cell
        for row, cell in _replayed(summary, lambda name: f"arms/{name}/warmup").items()
    }
    return table("Training", f"{NO_SUCCESS_RATE} {COMPLETE}", list(runs), rows)


def merge(summary: Summary) -> Table:
    """What merging did to the stored tensors."""
    audits = {name: facts["merge"] for name, facts in summary["training"].items()}
    return table(
        "Merge", "", list(audits), {name: _field(audits, key) for key, name in MERGE.items()}
    )


def release(summary: Summary) -> Table:
    """Which candidates may be released, and what blocks the others."""
    found = summary["release"]
    blocked = {"blocked by": lambda name: "; ".join(found[name]["blocked_by"]) or "nothing"}
    return table(
        "Release",
        summary["release_rule"],
        list(found),
        {"release eligible": _field(found, "eligible"), **blocked},
    )


def _replayed(summary: Summary, stage: Callable[[str], str]) -> dict[str, Cell]:
    """What verification derived anew of the stage that belongs to a column; 0 where there was no such stage."""

    def count(column: str, *kinds: str) -> int:
        return sum(summary["checked"].get(stage(column), {}).get(kind, 0) for kind in kinds)

    return {
        "replayed calls": lambda column: count(column, "tool calls"),
        "checked tokens": lambda column: count(column, "sampled tokens", "external tokens"),
    }
