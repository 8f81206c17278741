"""Verify a whole study: chain, freezes, evidence, statistics, summary; optionally the checkpoints."""

from collections.abc import Sequence
from pathlib import Path

from agentrl.evaluation.retention import read_items
from agentrl.evidence.files import read_json
from agentrl.rollout.chat import ChatProtocol, load_tokenizer
from agentrl.tasks.families import SPLITS, Task, contains_fact, read_tasks
from agentrl.verify import arguments, baselines, chain, gates, merges, node, numbers
from agentrl.verify.breaks import Findings
from agentrl.verify.evidence import Evidence


def verify(
    study: Path, checkpoints: bool = False, summary: bool = True, strict: bool = False
) -> Findings:
    """Check everything the study claims.

    Args:
        study: `results/{study}`; a copy elsewhere will do.
        checkpoints: also hash weights and re-audit every merge (needs torch and the start checkpoint).
        summary: also check the summary, if there is one.
        strict: code that cannot be compared (no commit, a changed checkout, a commit that is not in this one) is a break, not a note.
    """
    findings = Findings(study)
    folders = chain.in_scope(study, findings, summary)
    chain.check_outputs(study, folders, findings, weights=checkpoints)
    chain.check_inputs(study, folders, findings)
    chain.check_freezes(study, findings)
    chain.check_configs(study, folders, findings)
    chain.check_code(study, folders, findings, strict)
    baselines.check_adopted(study, findings)
    with findings.reading(study / "start" / "tokenizer"):
        evidence = Evidence(
            study, ChatProtocol(load_tokenizer(study / "start" / "tokenizer")), findings
        )
        _check_evidence(study, folders, evidence, findings)
        baselines.check_recorded(study, evidence.chat, findings)
        if (study / "statistics" / "comparison.json").is_file():
            numbers.check_statistics(study, evidence, findings)
            numbers.check_selection(study, evidence, findings)
            numbers.check_verdict(study, evidence, findings)
            numbers.check_plan(study, findings)
            if summary:
                numbers.check_summary(study, evidence, findings)
        else:
            findings.notes.append("no statistics yet")
    _check_gates(study, folders, checkpoints, findings)
    return findings


def _check_evidence(
    study: Path, folders: Sequence[Path], evidence: Evidence, findings: Findings
) -> None:
    splits = {
        split: tasks for split in SPLITS if (tasks := _tasks(study, split, findings)) is not None
    }
    evaluations = [folder for folder in folders if study / "policies" in folder.parents]
    for folder in evaluations:
        *policy, measure = folder.relative_to(study / "policies").parts
        name = "/".join(policy)
        with findings.reading(folder / "manifest.json"):
            model = study / "start" if name == "baseline" else study / "arms" / name / "merged"
            steps = read_json(model / "manifest.json")["steps"]
            findings.equal(
                "chain",
                folder / "manifest.json",
                "",
                "policy",
                name,
                read_json(folder / "manifest.json")["policy"],
            )
            if measure == "retention":
                evidence.retention(name, read_items(study / "retention" / "items.jsonl"), steps)
            elif (split := measure.removeprefix("agent-")) in splits:
                evidence.agent(name, split, splits[split], steps)
    _check_matching(study, evaluations, findings)
    trained = [
        f.parent.relative_to(study / "arms").as_posix()
        for f in folders
        if study / "arms" in f.parents and f.name == "train"
    ]
    arguments.check(study, trained, findings)
    if "train" in splits:
        for name in trained:
            evidence.training(name, splits["train"])
            if study / "arms" / name / "warmup" in folders:
                evidence.warmup(name, splits["train"])
        if study / "preflight" in folders:
            evidence.preflight(splits["train"], sorted({name.split("/")[0] for name in trained}))
        elif trained:
            findings.notes.append(
                "no preflight: whether the arms could learn was not sampled before training"
            )


def _check_gates(study: Path, folders: Sequence[Path], weights: bool, findings: Findings) -> None:
    """What each stage of an arm refused to go on without, applied anew."""
    for folder in (folder for folder in folders if study / "arms" in folder.parents):
        if folder.name == "train":
            gates.check_training(
                study, folder.parent.relative_to(study / "arms").as_posix(), findings, weights
            )
        elif folder.name == "merged":
            merges.check(study, folder, findings, weights)
    node.check(study, folders, findings)


def _tasks(study: Path, split: str, findings: Findings) -> list[Task] | None:
    file = study / "tasks" / split / "tasks.jsonl"
    if not file.is_file():
        return None
    with findings.reading(file):
        tasks = read_tasks(file)
        section = read_json(study / "config" / f"tasks-{split}.json")
        for task in tasks:
            for field in ("family", "scaffold"):
                findings.equal("tasks", file, task.id, field, section[field], getattr(task, field))
            if any(contains_fact(message["content"], task) for message in task.messages()):
                findings.add(
                    "leak", file, task.id, "prompt", "no private fact", "a prompt that shows one"
                )
        return tasks
    return None


def _check_matching(study: Path, evaluations: Sequence[Path], findings: Findings) -> None:
    """Baseline and candidates share harness, tokenizer, decoding, budget, batch shape and engine."""
    for folder in evaluations:
        *_, measure = folder.relative_to(study / "policies").parts
        file, baseline = (
            folder / "manifest.json",
            study / "policies" / "baseline" / measure / "manifest.json",
        )
        with findings.reading(file):
            mine, theirs = read_json(file), read_json(baseline)
            recorded = (
                "recorded" in theirs["inputs"]
            )  # sampled elsewhere: checked by `baselines.check_recorded`
            for field in ("config", "engine") if recorded else ("stage", "config", "engine"):
                findings.equal("matching", file, "", field, theirs[field], mine[field])
            for role in sorted({*theirs["inputs"], *mine["inputs"]} - {"policy", "recorded"}):
                findings.equal(
                    "matching",
                    file,
                    "",
                    f"inputs.{role}",
                    theirs["inputs"].get(role),
                    mine["inputs"].get(role),
                )
