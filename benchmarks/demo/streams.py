"""How many items differ between two policies of a finished study: with the policy's step in every stream's key, as once, and without."""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from agentrl.engine.loading import open_engine
from agentrl.evaluation import retention
from agentrl.evaluation.agent import episodes
from agentrl.evaluation.settings import Retention
from agentrl.evidence.files import read_json, write_json, write_text
from agentrl.evidence.section import validate
from agentrl.evidence.stage import run_command
from agentrl.policy.checkpoint import check_policy
from agentrl.policy.settings import Model
from agentrl.rollout.loop import Rollout
from agentrl.rollout.sampler import Engine, Request, Sample
from agentrl.rollout.settings import Decoding, Protocol
from agentrl.tasks.families import read_tasks

KEYS = {
    "with the step": (0, 32),
    "shared": (None, None),
}  # the step in the start's and in a candidate's
HEAD = """{seeds} decoding seeds ({first} to {last}), one trial each; means over seeds. Change: candidate - start in items.
Stays: share of the differences' variance that belongs to items, which further trials leave.
Made by `python -m benchmarks.demo.streams {study}`.

| measure | start and | keys | items that differ | change | sd of change | seeds with a drop | stays |
| --- | --- | --- | ---: | ---: | ---: | ---: | ---: |
"""


class ByStep:
    """An engine that samples as once: ("episode" or "retention", seed, policy step, ...) is every row's key."""

    def __init__(self, engine: Engine, step: int) -> None:
        self.engine, self.step, self.name = engine, step, engine.name

    def generate(self, requests: Sequence[Request]) -> list[Sample]:
        """Sample every request from the stream that the step names."""
        return self.engine.generate(
            [replace(request, key=self._before(*request.key)) for request in requests]
        )

    def _before(self, kind: str | int, seed: str | int, *rest: str | int) -> tuple[str | int, ...]:
        return ("episode" if kind == "evaluation" else kind, seed, self.step, *rest)


class Policy:
    """One policy of a study, sampled anew under any decoding seed and either kind of key."""

    def __init__(self, study: Path, of: Path) -> None:
        kinds = {"model": Model, "decoding": Decoding, "protocol": Protocol, "retention": Retention}
        read = {
            name: validate(read_json(study / f"config/{name}.json"), kind)
            for name, kind in kinds.items()
        }
        self.protocol, self.asked = read["protocol"], read["retention"]
        self.tasks, self.items = (
            read_tasks(study / "tasks/test/tasks.jsonl"),
            retention.read_items(study / "retention/items.jsonl"),
        )
        folder, _ = check_policy(of / "manifest.json")
        self.acting, self.chat = open_engine(folder, read["model"], read["decoding"])
        self.answering, _ = open_engine(folder, read["model"], self.asked.decoding)

    def scores(self, measure: str, seed: int, step: int | None) -> str:
        """0 or 1 per item, one digit each."""
        chosen = self.acting if measure == "agent-test" else self.answering
        engine = chosen if step is None else ByStep(chosen, step)
        if measure == "agent-test":
            rollout = Rollout(engine, self.chat, self.protocol)
            played = episodes(rollout, self.tasks, 1, len(self.tasks), "any", 0, seed)
            return "".join(
                str(int(episode.outcome.strict)) for batch in played for episode in batch
            )
        asked = self.asked.model_copy(
            update={"decoding": self.asked.decoding.model_copy(update={"seed": seed})}
        )
        answered = retention.answers(engine, self.chat, self.items, asked, "any", 0)
        return "".join(str(int(answer.correct)) for batch in answered for answer in batch)


def measure_all(study: Path, seeds: Sequence[int]) -> Iterator[dict[str, Any]]:
    """The start against itself and against every candidate."""
    start = Policy(study, study / "start")
    merged = {
        folder.parent.parent.name: folder
        for folder in sorted((study / "arms").glob("*/seed-*/merged"))
    }
    others = {"itself": start} | {name: Policy(study, folder) for name, folder in merged.items()}
    for measure in ("agent-test", "retention"):
        for keys, (before, after) in KEYS.items():
            baseline = [start.scores(measure, seed, before) for seed in seeds]
            for name, other in others.items():
                candidate = [other.scores(measure, seed, after) for seed in seeds]
                yield {
                    "measure": measure,
                    "pair": name,
                    "keys": keys,
                    "baseline": baseline,
                    "candidate": candidate,
                }


def line(row: dict[str, Any]) -> str:
    """A table row."""
    baseline, candidate = (
        np.array([list(map(int, digits)) for digits in row[side]])
        for side in ("baseline", "candidate")
    )
    difference = candidate - baseline  # decoding seed, item
    seeds, change, noise = (
        len(difference),
        difference.sum(axis=1),
        difference.var(axis=0, ddof=1).mean(),
    )
    item = max(difference.mean(axis=0).var(ddof=1) - noise / seeds, 0.0)
    differ = f"{(difference != 0).sum(axis=1).mean():.1f} of {difference.shape[1]}"
    cells = [
        differ,
        f"{change.mean():+.1f}",
        f"{change.std(ddof=1):.1f}",
        f"{(change < 0).sum()} of {seeds}",
    ]
    return f"| {row['measure']} | {row['pair']} | {row['keys']} | {' | '.join(cells)} | {item / (item + noise) if noise else 0:.2f} |\n"


def main() -> None:
    """Sample, keep the table with its scores."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "study", type=Path, help="results/{study}, finished, its checkpoints still there"
    )
    parser.add_argument(
        "--seeds", type=int, nargs="+", default=list(range(42, 52)), help="decoding seeds"
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("benchmarks/demo/streams"),
        help="writes {out}.md and {out}.json",
    )
    args = parser.parse_args()
    found = list(measure_all(args.study, args.seeds))
    head = HEAD.format(
        seeds=len(args.seeds), first=min(args.seeds), last=max(args.seeds), study=args.study
    )
    write_text(args.out.with_suffix(".md"), head + "".join(map(line, found)))
    write_json(
        args.out.with_suffix(".json"),
        {"study": args.study.name, "seeds": args.seeds, "rows": found},
    )


if __name__ == "__main__":
    run_command(main)
