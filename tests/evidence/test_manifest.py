"""Manifest: records that are whole, name what changed, say the same for the same work, and survive failure."""

import fcntl
import hashlib
import importlib
import inspect
import json
import logging
import pkgutil
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import agentrl
from agentrl.evidence import files, hashing
from agentrl.evidence import stage as stage_module
from agentrl.evidence.files import (
    ManifestError,
    check_files,
    dump,
    read_json,
    write_json,
    write_text,
)
from agentrl.evidence.stage import hash_files, locked, open_stage, run_command

SCRIPTS = Path(agentrl.__file__).parents[1]


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    """`run` configures the package's logger for a process of its own."""
    logger = logging.getLogger("agentrl")
    handlers, level = list(logger.handlers), logger.level
    yield
    logger.handlers[:], logger.level = handlers, level


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def test_a_reader_never_sees_half_a_file(tmp_path: Path) -> None:
    path, ended, torn = tmp_path / "f.txt", threading.Event(), []
    texts = {letter * 300_000 for letter in "ab"}
    write_text(path, min(texts))

    def read() -> None:
        while not ended.is_set():
            if (found := path.read_text()) not in texts:
                torn.append(len(found))

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(100):
        for text in texts:
            write_text(path, text)
    ended.set()
    reader.join()
    assert not torn


def test_a_crash_before_the_last_step_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    path = tmp_path / "new" / "f.json"
    write_json(path, {"a": 1})
    monkeypatch.setattr(files.os, "replace", crash)
    with pytest.raises(KeyboardInterrupt):
        write_json(path, {"a": 2})
    assert read_json(path) == {"a": 1}


def test_json_is_canonical_readable_and_strict(tmp_path: Path) -> None:
    assert dump({"b": 1, "a": "ä"}) == '{\n "a": "ä",\n "b": 1\n}\n'
    assert dump({"b": 1, "a": 2}) == dump({"a": 2, "b": 1})
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "f.json", {"p": float("nan")})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "defect"),
    [(None, "cannot be read"), (b'{"a": ', "not JSON"), (b"\xff\xfe", "not JSON")],
)
def test_unreadable_json_is_named(tmp_path: Path, content: bytes | None, defect: str) -> None:
    path = tmp_path / "f.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ManifestError, match=rf"{path}: {defect} .*rerun the stage that writes it"):
        read_json(path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three files, one below a subfolder."""
    root = tmp_path / "out"
    (root / "sub").mkdir(parents=True)
    for name in ("b.txt", "a.txt", "sub/c.txt"):
        (root / name).write_text(name)
    return root


def test_files_are_hashed_by_relative_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashing, "_CHUNK", 2)
    expected = {name: digest(name.encode()) for name in ("a.txt", "b.txt", "sub/c.txt")}
    assert hash_files(folder) == expected
    assert list(hash_files(folder)) == sorted(expected)
    assert hash_files(folder, ["sub/c.txt"]) == {"sub/c.txt": expected["sub/c.txt"]}
    with pytest.raises(FileNotFoundError, match=r"d\.txt"):
        hash_files(folder, ["d.txt"])


def test_changed_and_missing_files_are_named_with_both_digests(folder: Path) -> None:
    recorded = hash_files(folder)
    check_files(folder, recorded, "manifest.json")
    (folder / "unrecorded.txt").write_text("ignored")
    check_files(folder, recorded, "manifest.json")
    (folder / "sub/c.txt").write_text("sub/C.txt")
    with pytest.raises(ManifestError) as caught:
        check_files(folder, recorded, "some/manifest.json")
    for part in (
        folder / "sub/c.txt",
        "some/manifest.json",
        recorded["sub/c.txt"],
        digest(b"sub/C.txt"),
    ):
        assert str(part) in str(caught.value)
    (folder / "b.txt").unlink()
    with pytest.raises(
        ManifestError, match=rf"{folder / 'b.txt'}: missing, but recorded in some/manifest.json"
    ):
        check_files(folder, recorded, "some/manifest.json")


def work(folder: Path, measured: dict[str, Any]) -> dict[str, Any]:
    """One stage: reads `in.txt` of the folder above, writes `out.txt`."""
    source = folder.parent / "in.txt"
    source.parent.mkdir(parents=True, exist_ok=True)
    source.write_text("input")
    with open_stage(folder, "compare.py") as stage:
        (folder / "out.txt").write_text("output")
        stage.measured = measured
        stage.manifest({"data": source}, ["out.txt"], {"alpha": 0.05}, {"counts": {"n": 3}})
    return {
        name: read_json(folder / f"{name}.json") for name in ("manifest", "provenance", "status")
    }


def test_same_work_same_bytes_and_provenance_stays_outside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = work(tmp_path / "here" / "stage", {"tokens_per_second": 11.5})
    monkeypatch.setattr(stage_module, "_now", lambda: "2031-01-01T00:00:00+00:00")
    monkeypatch.setattr(stage_module, "environment", lambda: {"commit": "0" * 40, "gpu": "another"})
    two = work(tmp_path / "elsewhere" / "moved" / "stage", {"tokens_per_second": 99.9})
    paths = [
        tmp_path / "here/stage/manifest.json",
        tmp_path / "elsewhere/moved/stage/manifest.json",
    ]
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert one["provenance"] != two["provenance"]
    assert one["manifest"] == {
        "version": 1, "stage": "compare", "config": {"alpha": 0.05}, "counts": {"n": 3},
        "inputs": {"data": digest(b"input")}, "outputs": {"out.txt": digest(b"output")},
    }  # fmt: skip
    assert not set(one["manifest"]) & set(one["provenance"])


def test_provenance_says_who_where_when_and_which_code(tmp_path: Path) -> None:
    found = work(tmp_path / "stage", {"tokens_per_second": 11.5})["provenance"]
    assert found["command"] == "compare.py"
    assert found["code"]["compare.py"] == digest((SCRIPTS / "compare.py").read_bytes())
    assert found["tokens_per_second"] == 11.5
    assert found["packages"]["torch"]
    assert found["python"] == ".".join(map(str, sys.version_info[:3]))
    assert found["started"] <= found["ended"]
    assert found["peak_memory_mb"] > 0
    assert {"commit", "dirty", "gpu", "host", "container", "seconds"} <= set(found)


def test_status_tells_started_then_done(tmp_path: Path) -> None:
    with open_stage(tmp_path / "out", "compare.py"):
        status = read_json(tmp_path / "out" / "status.json")
        assert (status["state"], status["command"]) == ("started", "compare.py")
    status = read_json(tmp_path / "out" / "status.json")
    assert status["state"] == "done"
    assert "error" not in status
    assert status["seconds"] >= 0


@pytest.mark.parametrize(
    "error", [ManifestError("f.json: changed"), KeyboardInterrupt(), SystemExit("stop")]
)
def test_status_keeps_the_error_of_a_failed_stage(tmp_path: Path, error: BaseException) -> None:
    with pytest.raises(type(error)), open_stage(tmp_path, "compare.py"):
        raise error
    status = read_json(tmp_path / "status.json")
    assert status["state"] == "failed"
    assert status["error"].startswith(
        f"{type(error).__module__}.".removeprefix("builtins.") + type(error).__name__
    )
    assert str(error) in status["error"]
    assert not (tmp_path / "manifest.json").exists()


def own_errors() -> dict[str, type[BaseException]]:
    """Every exception class that the library defines; two modules define none and need what is not installed here."""
    left = ("agentrl.engine.vllm", "agentrl.engine.static.attention")
    names = [
        module.name
        for module in pkgutil.walk_packages(agentrl.__path__, "agentrl.")
        if module.name not in left
    ]
    members = [
        pair
        for name in names
        for pair in inspect.getmembers(importlib.import_module(name), inspect.isclass)
    ]
    return {
        name: c
        for name, c in members
        if issubclass(c, BaseException) and c.__module__.startswith("agentrl")
    }


def test_every_error_of_ours_ends_a_command_in_one_line() -> None:
    found = own_errors()
    assert {
        "ManifestError",
        "ConfigError",
        "FreezeError",
        "PolicyError",
        "WorkError",
        "BoundaryError",
        "EngineError",
    } <= set(found)
    for kind in found.values():
        error = kind.__new__(kind)
        BaseException.__init__(error, "x.json: bad")

        def fail(error: BaseException = error) -> None:
            raise error

        with pytest.raises(SystemExit) as caught:
            run_command(fail)
        assert caught.value.code == f"error: {error}", kind


@pytest.mark.parametrize(
    "bug",
    [
        ValueError("bug"),
        KeyError("bug"),
        RuntimeError("bug"),
        OSError("bug"),
        json.JSONDecodeError("bug", "", 0),
    ],
)
def test_bugs_keep_their_traceback(bug: Exception) -> None:
    def fail() -> None:
        raise bug

    with pytest.raises(type(bug)) as caught:
        run_command(fail)
    assert caught.value is bug


def test_a_command_given_bad_input_says_so_in_one_line(tmp_path: Path) -> None:
    section = tmp_path / "tasks-dev.json"
    section.write_text("{")
    command = [
        sys.executable,
        str(SCRIPTS / "generate_tasks.py"),
        "--section",
        section,
        "--split",
        "dev",
        "--out",
        tmp_path / "out",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert re.fullmatch(rf"error: {section}: not JSON .*\n", done.stderr)
    assert read_json(tmp_path / "out/status.json")["state"] == "failed"


HOLDER = """
import sys, shutil
from pathlib import Path
sys.path.insert(0, {scripts!r})
from agentrl.evidence.stage import locked
with locked({folder!r}):
    print("held", flush=True)
    if sys.stdin.readline().strip() == "remove":
        shutil.rmtree({folder!r})
    else:
        Path({folder!r}, "written").touch()
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock on `tmp_path/work` until it is told to end."""
    code = HOLDER.format(scripts=str(SCRIPTS), folder=str(tmp_path / "work"))
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def free(folder: Path) -> bool:
    """Whether a newcomer would get the lock at once."""
    with open(folder / ".lock", "w") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


@pytest.mark.parametrize("order", ["end", "remove"])
def test_a_second_writer_waits_for_the_first(
    tmp_path: Path, holder: subprocess.Popen[str], order: str
) -> None:
    """Also where the first removes the folder at its end, as a finished training run does: the second locks the new one."""
    seen: dict[str, bool] = {}

    def second() -> None:
        with locked(tmp_path / "work"):
            seen.update(
                written=(tmp_path / "work/written").exists(), exclusive=not free(tmp_path / "work")
            )

    waiting = threading.Thread(target=second)
    waiting.start()
    waiting.join(0.3)
    assert not seen
    holder.communicate(order + "\n")
    waiting.join(10)
    assert seen == {"written": order == "end", "exclusive": True}
    assert free(tmp_path / "work")


def test_a_lock_ends_with_an_error(tmp_path: Path) -> None:
    with pytest.raises(ManifestError), locked(tmp_path):
        raise ManifestError
    assert free(tmp_path)
