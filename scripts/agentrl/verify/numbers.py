"""Statistics and summary, recomputed from scores that verification itself derived from token ids."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from agentrl.evidence.files import read_json
from agentrl.evidence.section import validate
from agentrl.judgement import plan, selection, verdict
from agentrl.judgement.comparison import arm_of, by_arm
from agentrl.judgement.settings import Plan, Statistics
from agentrl.report.summary import render, summarize
from agentrl.statistics.paired import (
    item_bootstrap,
    mcnemar_exact,
    paired,
    sign_flip,
    zero_drop_gate,
)
from agentrl.verify.breaks import Findings
from agentrl.verify.evidence import Evidence, Parts
from agentrl.verify.summary import check_runs, check_told

TOLERANCE = 1e-12


def check_statistics(study: Path, evidence: Evidence, findings: Findings) -> None:
    """Every number of comparison.json: wins, losses and means by hand, intervals and p values by the statistics library."""
    file = study / "statistics" / "comparison.json"
    with findings.reading(file):
        settings = validate(read_json(study / "config" / "statistics.json"), Statistics)
        comparison = read_json(file)
        evaluated = sorted(
            f"{policy}, {measure}" for policy, measure in evidence.scores if policy != "baseline"
        )
        compared = sorted(
            f"{name}, {measure}"
            for arm in comparison.values()
            for name, found in arm.items()
            for measure in found
        )
        findings.equal("statistics", file, "", "comparisons", evaluated, compared)
        for arm, candidates in comparison.items():
            for name, measures in candidates.items():
                findings.equal("statistics", file, f"{arm}/{name}", "arm", arm_of(name), arm)
                for measure, claims in measures.items():
                    _check_pair(file, evidence, findings, settings, (name, measure), claims)


def _check_pair(
    file: Path,
    evidence: Evidence,
    findings: Findings,
    settings: Statistics,
    which: tuple[str, str],
    claims: dict[str, Any],
) -> None:
    name, measure = which
    base, other = (
        evidence.scores[policy, measure].groupby("item")["score"].mean()
        for policy in ("baseline", name)
    )
    delta = (other - base).sort_index()
    trials = int(evidence.scores[name, measure].groupby("item").size().iloc[0])
    wins, losses = int((delta > 0).sum()), int((delta < 0).sum())
    interval = item_bootstrap(delta, settings.confidence, seed=settings.seed)
    expected: dict[str, Any] = {
        "items": len(delta),
        "trials": trials,
        "wins": wins,
        "losses": losses,
        "ties": len(delta) - wins - losses,
        "baseline": float(base.mean()),
        "candidate": float(other.mean()),
        "difference": float(delta.mean()),
        "mcnemar_p": mcnemar_exact(wins, losses) if trials == 1 else None,
    }
    for field, value in expected.items():
        _close(findings, file, f"{name}, {measure}", field, value, claims[field])
    _same(
        findings,
        file,
        f"{name}, {measure}",
        "interval",
        _plain(asdict(interval)),
        claims["interval"],
    )
    if measure == "retention":
        gate = zero_drop_gate(
            paired(evidence.scores["baseline", measure], evidence.scores[name, measure])
        )
        _same(
            findings,
            file,
            f"{name}, {measure}",
            "zero_drop_gate",
            _plain(asdict(gate)),
            claims["zero_drop_gate"],
        )
    flips = None if trials == 1 else asdict(sign_flip(delta, seed=settings.seed))
    _same(findings, file, f"{name}, {measure}", "sign_flip", flips, claims["sign_flip"])
    if measure == "retention":
        findings.equal(
            "statistics",
            file,
            f"{name}, {measure}",
            "zero_drop_gate.passed",
            losses <= wins,
            claims["zero_drop_gate"]["passed"],
        )
    else:
        made_of = _composition(evidence.parts["baseline", measure], evidence.parts[name, measure])
        _same(findings, file, f"{name}, {measure}", "composition", made_of, claims["composition"])
    findings.counts["comparisons"] += 1


def _composition(before: Parts, after: Parts) -> dict[str, dict[str, int]]:
    """Episodes whose strict success turned, by what differs: counted by hand from replayed workflows and answers."""
    found = {side: {"workflow": 0, "answer": 0, "both": 0} for side in ("gained", "lost")}
    for key, parts in before.items():
        workflow, answer = (old != new for old, new in zip(parts, after[key], strict=True))
        if all(parts) != all(after[key]):
            what = "both" if workflow and answer else "workflow" if workflow else "answer"
            found["lost" if all(parts) else "gained"][what] += 1
    return found


def check_verdict(study: Path, evidence: Evidence, findings: Findings) -> None:
    """Every number of verdict.json: means, wins and pass^1 by hand, the rest by the library from recomputed scores.

    Which arms are placebos is read from what their training ran with, not from the verdict.
    """
    file = study / "statistics" / "verdict.json"
    with findings.reading(file):
        settings = validate(read_json(study / "config" / "statistics.json"), Statistics)
        claims = read_json(file)
        fresh = verdict.judge(evidence.scores, _placebos(study, evidence), settings)
        _same(findings, file, "", "", _plain(fresh), claims)
        arms = by_arm(evidence.scores)
        for arm, names in arms.items():
            for measure in fresh["arms"][arm]:
                _check_arm(file, evidence, findings, names, measure, claims["arms"][arm][measure])
        for policy, found in claims["pass_hat_k"].items():
            for measure, chances in found.items():
                rate = float(evidence.scores[policy, measure]["score"].mean())
                _close(findings, file, f"{policy}, {measure}", "pass_hat_k.1", rate, chances["1"])
        findings.counts["verdicts"] += len(arms)


def _check_arm(
    file: Path,
    evidence: Evidence,
    findings: Findings,
    names: list[str],
    measure: str,
    claims: dict[str, Any],
) -> None:
    """Means of an arm by hand: scores are complete, so every mean of means is a plain mean."""
    record = f"{names[0].split('/')[0]}, {measure}"
    baseline = float(evidence.scores["baseline", measure]["score"].mean())
    means = [float(evidence.scores[name, measure]["score"].mean()) - baseline for name in names]
    expected = {"seeds": len(names), "baseline": baseline, "difference": sum(means) / len(means)}
    for field, value in expected.items():
        _close(findings, file, record, field, value, claims[field])
    _same(findings, file, record, "two_way.seed_means", means, claims["two_way"]["seed_means"])


def _placebos(study: Path, evidence: Evidence) -> set[str]:
    """Arms with random reward, read from what their training ran with."""
    arms = by_arm(evidence.scores)
    trained = {
        arm: read_json(study / "arms" / names[0] / "train" / "manifest.json")["config"]["arm"]
        for arm, names in arms.items()
    }
    return {arm for arm, section in trained.items() if section["reward"] == "random"}


def check_selection(study: Path, evidence: Evidence, findings: Findings) -> None:
    """The choice on dev, if the statistics rest on one: its numbers from recomputed scores, and test evaluated for the chosen arm only."""
    file = study / "selection" / "selection.json"
    if "selection" not in read_json(study / "statistics" / "manifest.json")["inputs"]:
        return
    with findings.reading(file):
        claims = read_json(file)
        fresh = selection.choose_arm(evidence.scores, _placebos(study, evidence))
        _same(findings, file, "", "", _plain(fresh), claims)
        tested = {
            arm_of(policy) for policy, measure in evidence.scores if measure == selection.TEST
        }
        findings.equal(
            "selection",
            file,
            "",
            "policies evaluated on test",
            sorted({"baseline", fresh["chosen"]}),
            sorted(tested),
        )


def check_plan(study: Path, findings: Findings) -> None:
    """The plan, if there is one, follows from its section."""
    file = study / "plan" / "power.json"
    if not file.is_file():
        findings.notes.append("no plan")
        return
    with findings.reading(file):
        section = validate(read_json(study / "config" / "plan.json"), Plan)
        _same(findings, file, "", "", _plain(plan.plan(section)), read_json(file))


def _same(
    findings: Findings, file: Path, record: str, field: str, expected: Any, found: Any
) -> None:
    """Equal data, numbers within the tolerance; a break names the first field that differs by its path."""
    if isinstance(expected, dict) and isinstance(found, dict) and expected.keys() == found.keys():
        for key in expected:
            _same(findings, file, record, f"{field}.{key}".lstrip("."), expected[key], found[key])
    elif isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        for index, pair in enumerate(zip(expected, found, strict=True)):
            _same(findings, file, record, f"{field}.{index}".lstrip("."), *pair)
    elif (
        isinstance(expected, float)
        and isinstance(found, int | float)
        and not isinstance(found, bool)
    ):
        _close(findings, file, record, field, expected, found)
    else:
        findings.equal("statistics", file, record, field, expected, found)


def _close(
    findings: Findings,
    file: Path,
    record: str,
    field: str,
    expected: float | None,
    found: float | None,
) -> None:
    if expected is None or found is None:
        findings.equal("statistics", file, record, field, expected, found)
    elif abs(expected - found) > TOLERANCE:
        findings.add("statistics", file, record, field, expected, found)


def check_summary(study: Path, evidence: Evidence, findings: Findings) -> None:
    """The summary, if it exists: counts against the recount, everything else against a fresh rendering."""
    file = study / "summary" / "summary.json"
    if not file.is_file():
        findings.notes.append("no summary yet")
        return
    with findings.reading(file):
        summary = read_json(file)
        for policy, measures in summary["policies"].items():
            for measure, counts in measures.items():
                findings.equal(
                    "summary",
                    file,
                    f"{policy}, {measure}",
                    "counts",
                    evidence.counts[policy, measure],
                    counts,
                )
        check_told(study, summary, evidence, findings)
        check_runs(study, findings)
        settings = validate(read_json(study / "config" / "statistics.json"), Statistics)
        fresh = summarize(study, settings)
        # the folder may have been renamed; the ledger lies outside the study and may have grown since
        fresh |= {field: summary[field] for field in ("study", "looks")}
        for field in sorted({*fresh, *summary}):
            findings.equal(
                "summary", file, "", field, _plain(fresh.get(field)), _plain(summary.get(field))
            )
        text = study / "summary" / "summary.md"
        findings.equal(
            "summary", text, "", "text", render(summary), text.read_text(encoding="utf-8")
        )
        findings.counts["summaries"] += 1


def _plain(value: object) -> Any:
    return json.loads(json.dumps(value))
