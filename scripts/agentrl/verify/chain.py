"""The hash chain: every recorded file is the recorded one, every input is what the stage before it wrote, every freeze holds."""

import hashlib
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from agentrl.evidence.files import read_json
from agentrl.evidence.hashing import hash_files, sha256
from agentrl.verify.breaks import Findings

WEIGHTS = ".safetensors"
SCRIPTS = Path(__file__).resolve().parents[2]
_COMMIT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")
"""As git names one, by SHA-1 or by SHA-256."""
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)*")
"""Path of a source file as `sources.closure` gives it; no part of it begins with a dot or a dash."""


def stage_folders(study: Path) -> list[Path]:
    """Every folder below `study` that holds a manifest; work folders of running stages are no evidence."""
    return sorted(
        path.parent
        for path in study.rglob("manifest.json")
        if "work" not in path.relative_to(study).parts
    )


def in_scope(study: Path, findings: Findings, summary: bool) -> list[Path]:
    """Folders that the study's statistics rest on; leftovers of an arm or seed that is no longer configured are noted, not judged."""
    folders = [folder for folder in stage_folders(study) if summary or folder != study / "summary"]
    file = study / "statistics" / "manifest.json"
    if not file.is_file():
        return folders
    with findings.reading(file):
        evaluated = {study / "policies" / role for role in read_json(file)["inputs"] if "/" in role}
        trained = {
            study / "arms" / folder.parent.relative_to(study / "policies") for folder in evaluated
        }
        outside = [f for f in folders if _below(f, study / "policies") and f not in evaluated]
        outside += [f for f in folders if _below(f, study / "arms") and f.parent not in trained]
        outside += [
            f
            for f in folders
            if f == study / "selection" and "selection" not in _roles(file.parent)
        ]
        findings.notes += [
            f"{folder.relative_to(study)} is no part of the statistics: not checked"
            for folder in outside
        ]
        return [folder for folder in folders if folder not in outside]
    return folders


def _below(folder: Path, parent: Path) -> bool:
    return parent in folder.parents


def check_outputs(study: Path, folders: Sequence[Path], findings: Findings, weights: bool) -> None:
    """Every output has its recorded sha256. Weights are hashed only where asked for: they are the only large files."""
    skipped = 0
    for folder in folders:
        file = folder / "manifest.json"
        with findings.reading(file):
            recorded = read_json(file)["outputs"]
            chosen = {
                name: digest
                for name, digest in recorded.items()
                if weights or not name.endswith(WEIGHTS)
            }
            skipped += len(recorded) - len(chosen)
            for name in [name for name in chosen if not (folder / name).is_file()]:
                findings.add(
                    "missing",
                    folder / name,
                    "",
                    "file",
                    f"a file recorded in {file.relative_to(study)}",
                    "none",
                )
                chosen.pop(name)
            for name, found in hash_files(folder, list(chosen), fresh=True).items():
                findings.equal(
                    "hash",
                    folder / name,
                    "",
                    f"sha256 in {file.relative_to(study)}",
                    chosen[name],
                    found,
                )
            findings.counts["files hashed"] += len(chosen)
    if skipped:
        findings.notes.append(
            f"{skipped} weight files were not hashed; --checkpoints does, and re-audits the merges"
        )


def expected_inputs(study: Path, folder: Path) -> dict[str, Path]:  # noqa: C901 - one case per kind of stage
    """Role -> file that a stage's inputs must be, by the folder the stage wrote to."""
    parts = folder.relative_to(study).parts
    config, start = study / "config", study / "start" / "manifest.json"
    match parts:
        case ("tasks", split):
            return {"section": config / f"tasks-{split}.json"}
        case ("retention",):
            return {"section": config / "retention.json"}
        case ("policies", *policy, measure):
            name = "/".join(policy)
            model = (
                start if name == "baseline" else study / "arms" / name / "merged" / "manifest.json"
            )
            freeze = study / "freeze" / f"{measure}.json"
            if measure == "retention":
                copy = folder / "recorded.json"
                recorded = (
                    {"recorded": copy} if name == "baseline" and _lists(folder, copy.name) else {}
                )
                return {
                    "policy": model,
                    "freeze": freeze,
                    "items": study / "retention" / "items.jsonl",
                    **recorded,
                }
            return {
                "policy": model,
                "freeze": freeze,
                "tasks": study / "tasks" / measure.removeprefix("agent-") / "tasks.jsonl",
            }
        case ("preflight",):
            tasks = study / "tasks" / "train" / "tasks.jsonl"
            return {
                "section": config / "preflight.json",
                "start": start,
                "tasks": tasks,
                "freeze": study / "freeze" / "train.json",
            }
        case ("arms", arm, _, "train" | "warmup" as stage):
            tasks, section = study / "tasks" / "train" / "tasks.jsonl", config / f"arm-{arm}.json"
            warmed = stage == "train" and read_json(section)["warmup"] is not None
            warmup = {"warmup": folder.parent / "warmup" / "manifest.json"} if warmed else {}
            return {
                "start": start,
                "tasks": tasks,
                "freeze": study / "freeze" / "train.json",
                "arm": section,
                **warmup,
            }
        case ("arms", _, _, "merged"):
            return {
                "start": start,
                "train": folder.parent / "train" / "manifest.json",
                "section": config / "model.json",
            }
        case ("summary",):
            stages = {
                role: study / role / "manifest.json" for role in ("plan", "preflight", "statistics")
            }
            return {**stages, "verified": study / "verify" / "verify.json"}
        case ("plan",):
            return {"section": config / "plan.json"}
        case ("statistics",):
            chosen = (
                {"selection": study / "selection" / "manifest.json"}
                if "selection" in _roles(folder)
                else {}
            )
            return {"section": config / "statistics.json", **_evaluations(study, folder), **chosen}
        case ("selection",):
            return _evaluations(study, folder)
    return {}


def _roles(folder: Path) -> list[str]:
    return list(read_json(folder / "manifest.json")["inputs"])


def _evaluations(study: Path, folder: Path) -> dict[str, Path]:
    """What a stage over many evaluations consumed of them: role `{policy}/{measure}` -> file."""
    return {
        role: study / "policies" / role / "manifest.json" for role in _roles(folder) if "/" in role
    }


def _lists(folder: Path, name: str) -> bool:
    """Whether a manifest has an output: a file that merely lies there may be an earlier run's."""
    return name in read_json(folder / "manifest.json")["outputs"]


def check_inputs(study: Path, folders: Sequence[Path], findings: Findings) -> None:
    """Every stage consumed exactly what lies in this study now."""
    for folder in folders:
        file = folder / "manifest.json"
        with findings.reading(file):
            recorded = read_json(file)["inputs"]
            expected = expected_inputs(study, folder)
            for role, path in expected.items():
                found = sha256(path) if path.is_file() else "no such file"
                findings.equal(
                    "chain",
                    file,
                    "",
                    f"inputs.{role} ({path.relative_to(study)})",
                    found,
                    recorded.get(role),
                )
                findings.counts["chain links"] += 1
            if extra := set(recorded) - set(expected) if expected else set():
                findings.add(
                    "chain",
                    file,
                    "",
                    f"inputs.{sorted(extra)[0]}",
                    "no such input",
                    recorded[sorted(extra)[0]],
                )


def check_freezes(study: Path, findings: Findings) -> None:
    """Freezes hold the data, tokenizer and configuration of this study, and agree on the upstream code."""
    upstream: dict[str, str] = {}
    for file in sorted((study / "freeze").glob("*.json")):
        with findings.reading(file):
            content = read_json(file)
            data = (
                study / "retention" / "items.jsonl"
                if file.stem == "retention"
                else _tasks(study, file.stem)
            )
            findings.equal("freeze", file, "", "files.data", sha256(data), content["files"]["data"])
            for name, section in content["config"].items():
                findings.equal(
                    "config",
                    file,
                    "",
                    f"config.{name}",
                    read_json(study / "config" / f"{name}.json"),
                    section,
                )
            tokenizer = hash_files(study / "start" / "tokenizer")
            findings.equal(
                "freeze", file, "", "folders.tokenizer", tokenizer, content["folders"]["tokenizer"]
            )
            for name, digest in content["upstream"].items():
                findings.equal(
                    "freeze",
                    file,
                    "",
                    f"upstream.{name}",
                    upstream.setdefault(name, digest),
                    digest,
                )
            if "start" in content["folders"]:
                start = read_json(study / "start" / "manifest.json")["outputs"]
                recorded = {
                    name.removeprefix("model/"): digest
                    for name, digest in start.items()
                    if name.startswith("model/")
                }
                findings.equal(
                    "freeze", file, "", "folders.start", recorded, content["folders"]["start"]
                )


def _tasks(study: Path, stage: str) -> Path:
    return study / "tasks" / stage.removeprefix("agent-") / "tasks.jsonl"


def check_configs(study: Path, folders: Sequence[Path], findings: Findings) -> None:
    """Every manifest was made with the configuration that lies in config/."""
    for folder in folders:
        with findings.reading(folder / "manifest.json"):
            manifest = read_json(folder / "manifest.json")
            for name, path in _sections(study, folder, manifest):
                found = manifest["config"] if name is None else manifest["config"].get(name)
                findings.equal(
                    "config",
                    folder / "manifest.json",
                    "",
                    f"config.{name or ''}",
                    read_json(path),
                    found,
                )
            if folder.name in ("train", "warmup") and _below(folder, study / "arms"):
                expected = _overridden(study / "config", folder.relative_to(study).parts[1])
                findings.equal(
                    "config",
                    folder / "manifest.json",
                    "",
                    "config.training",
                    expected,
                    manifest["config"].get("training"),
                )


def _overridden(config: Path, arm: str) -> dict[str, Any]:
    """What an arm trains with: the study's settings below the arm's overrides, merged here a second time on purpose."""
    settings = read_json(config / "training.json")
    overrides = read_json(config / f"arm-{arm}.json")["training"]
    nested = {
        key: {**value, **overrides.get(key, {})}
        for key, value in settings.items()
        if isinstance(value, dict)
    }
    return {**settings, **overrides, **nested}


def _sections(
    study: Path, folder: Path, manifest: Mapping[str, Any]
) -> Iterator[tuple[str | None, Path]]:
    """(key in the manifest's config or None for all of it, section file)."""
    config, parts = study / "config", folder.relative_to(study).parts
    match parts:
        case ("tasks", split):
            yield None, config / f"tasks-{split}.json"
        case ("retention",):
            yield None, config / "retention.json"
        case ("statistics",):
            yield None, config / "statistics.json"
        case ("plan",):
            yield None, config / "plan.json"
        case ("arms", _, _, "merged"):
            yield None, config / "model.json"
        case ("policies", *_) | ("preflight",):
            yield from ((name, config / f"{name}.json") for name in manifest["config"])
        case ("arms", arm, _, "train" | "warmup"):
            plain = set(manifest["config"]) - {
                "arm",
                "seed",
                "training",
            }  # the arm may override training: `_overridden`
            yield from ((name, config / f"{name}.json") for name in sorted(plain))
            yield "arm", config / f"arm-{arm}.json"


def check_code(
    study: Path, folders: Sequence[Path], findings: Findings, strict: bool = False
) -> None:
    """In a checkout: the files of the recorded commit have the sha256 that each stage recorded of the code it ran.

    Args:
        study: the study's folder.
        folders: its stages.
        findings: where breaks and notes go.
        strict: whether code that cannot be compared is a break instead of a note.
    """
    notes: set[str] = set()
    for folder in folders:
        file = folder / "provenance.json"
        with findings.reading(file):
            for field, expected, found, note in _check_stage_code(file, findings):
                if strict:
                    findings.add("code", file, "", field, expected, found)
                notes.add(
                    note if note.startswith("commit ") else f"{folder.relative_to(study)}: {note}"
                )
    findings.notes[:] = sorted({*findings.notes, *(() if strict else notes)})


def _check_stage_code(file: Path, findings: Findings) -> Iterator[tuple[str, str, str, str]]:
    """Compare one stage's code; yields why it cannot be compared: field, what was expected and found there, and the note about it."""
    record = read_json(file)
    commit, code = record["commit"], record["code"]
    if commit is None:
        yield "commit", "the commit of a clean checkout", "none", "ran from no checkout"
        return
    if not _COMMIT.fullmatch(commit):
        findings.add("code", file, "", "commit", "40 or 64 hexadecimal digits", commit)
        return
    if record["command"] not in code:
        findings.add(
            "code",
            file,
            "",
            "code",
            f"a digest of each file of {record['command']}",
            ", ".join(code) or "none",
        )
    if record["dirty"] is not False:
        yield (
            "dirty",
            "the commit of a clean checkout",
            str(record["dirty"]),
            "ran from a changed checkout",
        )
        return
    if not _has(commit):
        short = commit[:12]
        yield (
            "commit",
            "a commit of this checkout",
            commit,
            f"commit {short} is not in this checkout: code not compared",
        )
        return
    for name, digest in code.items():
        field, committed = f"code.{name} at commit {commit[:12]}", _committed(commit, name)
        if committed is None:
            findings.add("code", file, "", field, "a file below scripts/ of that commit", "none")
        else:
            findings.equal("code", file, "", field, committed, digest)
        findings.counts["code files compared"] += 1


@cache
def _has(commit: str) -> bool:
    """Whether the checkout that this code lies in knows a commit."""
    return _git("cat-file", "-e", "--end-of-options", f"{commit}^{{commit}}") is not None


@cache
def _committed(commit: str, name: str) -> str | None:
    """Sha256 of a file below scripts/ as it was committed; None where there is no such file.

    Args:
        commit: hexadecimal digits.
        name: from a folder that somebody may have forged, so no path leaves scripts/ and no string reaches git as an option.
    """
    if not _NAME.fullmatch(name):
        return None
    content = _git("show", "--end-of-options", f"{commit}:./{name}")
    return None if content is None else hashlib.sha256(content).hexdigest()


def _git(*arguments: str) -> bytes | None:
    """What git prints; None where it fails, or is not installed. No pager, and no object that a local ref puts in another's place."""
    try:
        done = subprocess.run(
            ["git", "--no-pager", "--no-replace-objects", *arguments],
            cwd=SCRIPTS,
            capture_output=True,
            check=False,
        )
    except OSError:
        return None
    return done.stdout if done.returncode == 0 else None
