"""Verification of the code a study ran: compared with its commit, noted where that is impossible, and a break with `--strict`."""

import hashlib
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from agentrl.verify import chain
from agentrl.verify.breaks import Findings

FILES = {"train.py": "import agentrl.a\n", "agentrl/a.py": "value = 1\n"}
OTHER = "0123456789abcdef" * 4
"""A commit that no checkout has; its first 40 digits as well."""


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.fixture
def commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The only commit of a small checkout, in which the code of verify is made to lie; its project lies one folder deep."""
    scripts = tmp_path / "checkout/project/scripts"
    for name, text in FILES.items():
        (scripts / name).parent.mkdir(parents=True, exist_ok=True)
        (scripts / name).write_text(text, encoding="utf-8")
    (scripts.parent / "secret.txt").write_text("secret\n", encoding="utf-8")
    git(scripts, "init", "-q", str(tmp_path / "checkout"))
    git(scripts, "add", "..")
    git(
        scripts,
        "-c",
        "user.name=n",
        "-c",
        "user.email=e",
        "-c",
        "commit.gpgsign=false",
        "commit",
        "-qm",
        "m",
    )
    monkeypatch.setattr(chain, "SCRIPTS", scripts)
    return git(scripts, "rev-parse", "HEAD")


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def checked(tmp_path: Path, *, strict: bool = False, **record: Any) -> Findings:
    """What verification says about a study of one stage with this provenance."""
    folder = tmp_path / "study/start"
    folder.mkdir(parents=True, exist_ok=True)
    honest = {
        "command": "train.py",
        "dirty": False,
        "code": {name: sha256(text) for name, text in FILES.items()},
    }
    (folder / "provenance.json").write_text(json.dumps(honest | record), encoding="utf-8")
    findings = Findings(folder.parent)
    chain.check_code(folder.parent, [folder], findings, strict)
    return findings


@pytest.mark.parametrize("strict", [False, True])
def test_code_as_committed_passes(tmp_path: Path, commit: str, strict: bool) -> None:
    findings = checked(tmp_path, strict=strict, commit=commit)
    assert (findings.passed, findings.notes, findings.counts["code files compared"]) == (
        True,
        [],
        2,
    )


UNCOMPARABLE = {
    "no checkout": ({"commit": None}, "commit", "start: ran from no checkout"),
    "changed checkout": ({"dirty": True}, "dirty", "start: ran from a changed checkout"),
    "a changed checkout by another word": (
        {"dirty": None},
        "dirty",
        "start: ran from a changed checkout",
    ),
    "commit elsewhere": (
        {"commit": OTHER[:40]},
        "commit",
        "commit 0123456789ab is not in this checkout: code not compared",
    ),
    "commit of another kind": (
        {"commit": OTHER},
        "commit",
        "commit 0123456789ab is not in this checkout: code not compared",
    ),
}


@pytest.mark.parametrize("name", UNCOMPARABLE)
def test_code_that_cannot_be_compared_is_a_note_or_with_strict_a_break(
    tmp_path: Path, commit: str, name: str
) -> None:
    record, field, note = UNCOMPARABLE[name]
    lenient = checked(tmp_path, **{"commit": commit} | record)
    assert (lenient.passed, lenient.notes) == (True, [note])
    strict = checked(tmp_path, strict=True, **{"commit": commit} | record)
    assert (strict.notes, strict.first["code"].field, strict.first["code"].file) == (
        [],
        field,
        "start/provenance.json",
    )


FORGED: dict[str, tuple[dict[str, Any], str, str]] = {
    "another file": ({"code": {"train.py": sha256("other\n")}}, "code", "code.train.py"),
    "a file that the commit lacks": ({"code": {"aaa.py": "0" * 64, "train.py": sha256(FILES["train.py"])}}, "code", "code.aaa.py"),
    "a file the commit lacks, and no digest": ({"code": {"aaa.py": None, "train.py": sha256(FILES["train.py"])}}, "code", "code.aaa.py"),
    "no file": ({"code": {}}, "code", "code"),
    "not its own command": ({"code": {"agentrl/a.py": sha256(FILES["agentrl/a.py"])}}, "code", "code"),
    "a path that leaves scripts": ({"code": {"../secret.txt": sha256("secret\n"), "train.py": sha256(FILES["train.py"])}},
                                   "code", "code.../secret.txt"),
    "a path that leaves and returns": ({"code": {"agentrl/../train.py": sha256(FILES["train.py"])}, "command": "agentrl/../train.py"},
                                       "code", "agentrl/../train.py"),
    "an absolute path": ({"code": {"/train.py": sha256(FILES["train.py"])}, "command": "/train.py"}, "code", "code./train.py"),
    "an option as file": ({"code": {"--output=written": "0" * 64}, "command": "--output=written"}, "code", "code.--output=written"),
    "an option as commit": ({"commit": "--output=written"}, "code", "commit"),
    "an option behind digits": ({"commit": "a" * 40 + "\n--output=written"}, "code", "commit"),
    "a branch": ({"commit": "HEAD"}, "code", "commit"),
    "a shortened commit": ({"commit": "abcdef1"}, "code", "commit"),
    "no text as commit": ({"commit": 7}, "unreadable", "content"),
    "no code": ({"code": None}, "unreadable", "content"),
}  # fmt: skip


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("name", FORGED)
def test_a_forged_record_is_a_break(tmp_path: Path, commit: str, name: str, strict: bool) -> None:
    record, kind, field = FORGED[name]
    findings = checked(tmp_path, strict=strict, **{"commit": commit} | record)
    assert kind in findings.first, findings.first
    assert field in findings.first[kind].field
    assert not list(tmp_path.rglob("written"))


def test_what_is_compared_follows_the_file_that_the_commit_lacks(
    tmp_path: Path, commit: str
) -> None:
    """A name that sorts first and is nowhere must not end the comparison."""
    findings = checked(
        tmp_path, commit=commit, code={"aaa.py": "0" * 64, "train.py": sha256("other\n")}
    )
    assert findings.breaks["code"] == 2


def test_a_tree_is_no_commit(tmp_path: Path, commit: str) -> None:
    tree = git(chain.SCRIPTS, "rev-parse", "HEAD^{tree}")
    assert not checked(tmp_path, strict=True, commit=tree).passed


def test_a_replaced_commit_is_read_as_it_was_made(tmp_path: Path, commit: str) -> None:
    """`git replace` would let a checkout show other files under the recorded commit."""
    (chain.SCRIPTS / "train.py").write_text("other\n", encoding="utf-8")
    git(
        chain.SCRIPTS,
        "-c",
        "user.name=n",
        "-c",
        "user.email=e",
        "-c",
        "commit.gpgsign=false",
        "commit",
        "-qam",
        "m",
    )
    git(chain.SCRIPTS, "replace", commit, "HEAD")
    chain._committed.cache_clear()
    assert checked(tmp_path, commit=commit).passed


def test_an_absent_provenance_is_a_break(tmp_path: Path, commit: str) -> None:
    findings = Findings(tmp_path)
    chain.check_code(tmp_path, [tmp_path], findings)
    assert "unreadable" in findings.first


def test_without_git_code_is_not_compared(
    tmp_path: Path, commit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain._has.cache_clear()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert checked(tmp_path, commit=commit).notes == [
        f"commit {commit[:12]} is not in this checkout: code not compared"
    ]
    assert not checked(tmp_path, strict=True, commit=commit).passed
    chain._has.cache_clear()
