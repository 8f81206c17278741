"""Baselines that were taken over: a recorded one is compared with the study anew, an adopted one is told from one that was run here."""

from dataclasses import asdict
from pathlib import Path

from agentrl.evaluation import recorded, retention
from agentrl.evidence.files import read_json
from agentrl.evidence.hashing import sha256
from agentrl.evidence.section import ConfigError
from agentrl.rollout.chat import ChatProtocol
from agentrl.verify.breaks import Findings
from agentrl.verify.evidence import read_lines

ADOPTION = "adopt_baseline.py"


def check_recorded(study: Path, chat: ChatProtocol, findings: Findings) -> None:
    """The retention baseline is the file that the freeze names and says what it says; one that no freeze names was sampled here."""
    folder = study / "policies" / recorded.POLICY / "retention"
    if not (folder / "manifest.json").is_file():
        return
    file, copy = folder / "manifest.json", folder / recorded.NAME
    with findings.reading(file):
        manifest, frozen = read_json(file), read_json(study / "freeze" / "retention.json")
        imported = recorded.NAME in manifest["outputs"]
        stage = "import_retention" if imported else "evaluate_retention"
        findings.equal("recorded", file, "", "stage", stage, manifest["stage"])
        found = sha256(copy) if imported else None
        findings.equal(
            "recorded",
            study / "freeze" / "retention.json",
            "",
            "files.baseline",
            found,
            frozen["files"].get("baseline"),
        )
        answers = [row for _, row in read_lines(folder / "answers.jsonl")]
        if not imported:
            bare = sum(row["logprobs"] is None for row in answers)
            findings.equal(
                "recorded", folder / "answers.jsonl", "", "answers without logprobs", 0, bare
            )
            return
        items = retention.read_items(study / "retention" / "items.jsonl")
        try:
            source = recorded.Import(
                copy, read_json(study / "start" / "manifest.json"), frozen, items, chat
            )
            expected = [asdict(answer) for answer in source.answers(manifest["engine"])]
        except (recorded.RecordedError, ConfigError) as error:
            findings.add(
                "recorded",
                copy,
                "",
                "content",
                "a baseline of this study's start policy and protocol",
                error,
            )
            return
        for number, (mine, theirs) in enumerate(zip(expected, answers, strict=False), 1):
            findings.equal(
                "recorded", folder / "answers.jsonl", f"line {number}", "answer", mine, theirs
            )
        findings.counts["recorded answers"] += len(expected)
        findings.notes.append(
            f"{folder.relative_to(study)}: recorded elsewhere; that the start policy gave these ids under these settings, with engine "
            f"{source.content.engine}, is the record's own account"
        )


def check_adopted(study: Path, findings: Findings) -> None:
    """Tell baselines that an earlier study sampled from those that ran here, and hold adoption's gates against them.

    Their evidence is checked like any other, and that they consumed this study's files by the chain. That the earlier study was of that
    name, and ran where it says, is its own account: provenance is no part of the chain.
    """
    for file in sorted((study / "policies" / "baseline").glob("*/provenance.json")):
        with findings.reading(file):
            record, manifest = read_json(file), read_json(file.parent / "manifest.json")
            if (adopted := record.get("adopted")) is None:
                findings.equal(
                    "recorded", file, "", "command", f"{manifest['stage']}.py", record["command"]
                )
                continue
            findings.equal("recorded", file, "", "command", ADOPTION, record["command"])
            found = sha256(file.parent / "manifest.json")
            findings.equal("recorded", file, "", "adopted.manifest", found, adopted["manifest"])
            stage = "evaluate_retention" if file.parent.name == "retention" else "evaluate_agent"
            findings.equal(
                "recorded", file.parent / "manifest.json", "", "stage", stage, manifest["stage"]
            )
            if (ran := adopted["provenance"]) is not None:
                findings.equal(
                    "recorded",
                    file,
                    "",
                    "adopted.provenance.command",
                    f"{stage}.py",
                    ran["command"],
                )
                findings.equal(
                    "recorded",
                    file,
                    "",
                    "adopted.provenance.engine",
                    manifest["engine"],
                    ran["engine"],
                )
            where = "" if ran is not None else ", which left no record of where it ran"
            findings.notes.append(
                f"{file.parent.relative_to(study)}: taken over as it is from study {adopted['study']}{where}"
            )
