"""From evaluation records to paired comparisons: every candidate against the start policy, on the same items under the same freeze."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import pandas as pd

from agentrl.evidence.errors import StudyError
from agentrl.evidence.files import check_files, read_json
from agentrl.judgement.settings import Statistics
from agentrl.rollout import trajectory
from agentrl.statistics.paired import (
    item_bootstrap,
    mcnemar_exact,
    paired,
    sign_flip,
    zero_drop_gate,
)

AGENT, RETENTION = "agent", "retention"
BASELINE = "baseline"
SEED_MARK = "/seed-"
RECORDED = "recorded"
"""Input role of a retention baseline that was recorded elsewhere (`agentrl/recorded.py`)."""


class ComparisonError(StudyError, ValueError):
    """Two evaluations cannot be compared; the message names the field in which they differ."""


@dataclass(frozen=True)
class Evaluation:
    """One policy's records on one measure, checked against their manifest."""

    policy: str
    measure: str
    """`agent-dev`, `agent-test` or `retention`."""
    manifest: dict[str, Any]
    scores: pd.DataFrame
    """Columns item, trial, score (0 or 1): strict success, or the protocol score of retention."""
    parts: pd.DataFrame | None = None
    """Agent measures: columns item, trial, workflow, answer (0 or 1), of which strict success is the product."""


def load(folder: Path) -> Evaluation:
    """Read `{policy}/{measure}/` with its manifest. Raises `ManifestError` where a file is not the recorded one."""
    manifest = read_json(folder / "manifest.json")
    check_files(folder, manifest["outputs"], folder / "manifest.json")
    if (
        tuple(manifest["policy"].split("/"))
        != folder.parts[-1 - len(manifest["policy"].split("/")) : -1]
    ):
        raise ComparisonError(
            f"{folder}: holds the evaluation of {manifest['policy']}; every policy's records lie in its own folder"
        )
    policy, keys = manifest["policy"], ["item", "trial"]
    if folder.name == RETENTION:
        return Evaluation(
            policy,
            RETENTION,
            manifest,
            pd.DataFrame(retention_rows(folder / "answers.jsonl"), columns=[*keys, "score"]),
        )
    table = pd.DataFrame(
        agent_rows(folder / "episodes.jsonl"), columns=[*keys, "score", "workflow", "answer"]
    )
    return Evaluation(
        policy, folder.name, manifest, table[[*keys, "score"]], table[[*keys, "workflow", "answer"]]
    )


def agent_rows(path: Path) -> list[tuple[str, int, int, int, int]]:
    """(task, trial, strict success, valid workflow, correct answer) of every episode."""
    found = ((t.key, t.outcome) for t in trajectory.read(path))
    return [
        (key.task, key.trial, int(o.strict), int(o.workflow), int(o.answer_correct))
        for key, o in found
    ]


def retention_rows(path: Path) -> list[tuple[str, int, int]]:
    """(item, 0, protocol score) of every answer."""
    answers = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [(answer["item"], 0, int(answer["correct"])) for answer in answers]


def compare(baseline: Evaluation, candidate: Evaluation, settings: Statistics) -> dict[str, Any]:
    """Paired comparison of two policies on one measure, as plain data (fractions, not per cent).

    Raises:
        ComparisonError: the two were not evaluated under the same freeze and data, engine or configuration.
        StatisticsError: items or trials are missing or doubled.
    """
    same_conditions(baseline, candidate)
    pair = paired(baseline.scores, candidate.scores)
    interval = item_bootstrap(pair.differences, settings.confidence, seed=settings.seed)
    result = {
        "items": pair.n,
        "trials": pair.trials,
        "baseline": pair.baseline_mean,
        "candidate": pair.candidate_mean,
        "difference": pair.difference,
        "wins": pair.wins,
        "losses": pair.losses,
        "ties": pair.ties,
        "interval": asdict(interval),
        "mcnemar_p": mcnemar_exact(pair.wins, pair.losses) if pair.trials == 1 else None,
        "sign_flip": asdict(sign_flip(pair.differences, seed=settings.seed))
        if pair.trials > 1
        else None,
    }
    if candidate.measure == RETENTION:
        result["zero_drop_gate"] = asdict(zero_drop_gate(pair))
    if baseline.parts is not None and candidate.parts is not None:
        result["composition"] = composition(baseline.parts, candidate.parts)
    return result


def composition(baseline: pd.DataFrame, candidate: pd.DataFrame) -> dict[str, dict[str, int]]:
    """What the change of strict success consists of: episodes gained and lost, by the part that changed.

    An episode is paired with the other policy's of the same item and trial. With one trial, gained and lost episodes are wins and losses.

    Args:
        baseline: columns item, trial, workflow, answer (0 or 1).
        candidate: the same items and trials.

    Returns:
        `gained` and `lost`, each with `workflow` (only that changed), `answer` (only that) and `both`.
    """
    pairs = baseline.merge(
        candidate, on=["item", "trial"], suffixes=("", "_after"), validate="one_to_one"
    )
    before, after = (
        pairs["workflow"] * pairs["answer"],
        pairs["workflow_after"] * pairs["answer_after"],
    )
    workflow, answer = (
        pairs["workflow"] != pairs["workflow_after"],
        pairs["answer"] != pairs["answer_after"],
    )
    changed = {
        "workflow": workflow & ~answer,
        "answer": answer & ~workflow,
        "both": workflow & answer,
    }
    turned = {"gained": after > before, "lost": after < before}
    return {
        side: {part: int((rows & here).sum()) for part, rows in changed.items()}
        for side, here in turned.items()
    }


def same_conditions(baseline: Evaluation, candidate: Evaluation) -> None:
    """Refuse a pair that differs in anything but the policy."""
    recorded = (
        RECORDED in baseline.manifest["inputs"]
    )  # sampled elsewhere: another stage wrote it, and consumed the file it came in
    for field in ("config", "engine") if recorded else ("stage", "config", "engine"):
        _equal(candidate, field, baseline.manifest[field], candidate.manifest[field])
    inputs = set(baseline.manifest["inputs"]) - {"policy", RECORDED}
    for role in sorted(inputs):
        _equal(
            candidate,
            f"inputs.{role}",
            baseline.manifest["inputs"][role],
            candidate.manifest["inputs"].get(role),
        )


def _equal(candidate: Evaluation, field: str, left: object, right: object) -> None:
    if left != right:
        raise ComparisonError(
            f"{candidate.policy}/{candidate.measure}: {field} differs from the baseline's (baseline {left}, candidate {right}); "
            "rerun both evaluations under one freeze"
        )


Key = tuple[str, str]
"""(policy, measure)."""


def load_study(folders: Iterable[Path]) -> dict[Key, Evaluation]:
    """Every evaluation by policy and measure."""
    loaded = [load(folder) for folder in folders]
    return {(evaluation.policy, evaluation.measure): evaluation for evaluation in loaded}


def by_arm(evaluated: Iterable[Key]) -> dict[str, list[str]]:
    """Arm -> its candidates `{arm}/seed-{seed}`, by seed."""
    names = sorted(
        {policy for policy, _ in evaluated} - {BASELINE},
        key=lambda name: (arm_of(name), seed_of(name)),
    )
    return {arm: list(group) for arm, group in groupby(names, arm_of)}


def arm_of(candidate: str) -> str:
    """`{arm}/seed-{seed}` -> arm."""
    return candidate.split(SEED_MARK)[0]


def seed_of(candidate: str) -> int:
    """`{arm}/seed-{seed}` -> training seed."""
    return int(candidate.split(SEED_MARK)[1])


def measures_of(evaluated: Iterable[Key], policy: str) -> list[str]:
    """What a policy was evaluated on, sorted. Test is missing for arms that a choice on dev passed over."""
    return sorted(measure for name, measure in evaluated if name == policy)


def compare_study(evaluations: Mapping[Key, Evaluation], settings: Statistics) -> dict[str, Any]:
    """Arm -> candidate -> measure -> comparison with the baseline, for everything that was evaluated (see `load_study`)."""
    return {
        arm: {
            n: {
                m: compare(evaluations[BASELINE, m], evaluations[n, m], settings)
                for m in measures_of(evaluations, n)
            }
            for n in names
        }
        for arm, names in by_arm(evaluations).items()
    }
