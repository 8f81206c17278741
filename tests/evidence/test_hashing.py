"""Hashing: right digests, large files read once, and never a stale digest of a file that changed."""

import hashlib
import os
from pathlib import Path

import pytest

from agentrl.evidence import hashing
from agentrl.evidence.hashing import hash_files, remembered_sha256, sha256


@pytest.fixture
def large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that counts as large, and a counter of reads."""
    monkeypatch.setattr(hashing, "LARGE", 1000)
    path = tmp_path / "weights.bin"
    path.write_bytes(os.urandom(2000))
    return path


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []
    original = hashing.sha256

    def counting(path: str | Path) -> str:
        found.append(str(path))
        return original(path)

    monkeypatch.setattr(hashing, "sha256", counting)
    return found


def test_digest_is_that_of_the_content(tmp_path: Path) -> None:
    content = os.urandom(5 << 20)
    (tmp_path / "a").write_bytes(content)
    assert sha256(tmp_path / "a") == hashlib.sha256(content).hexdigest()


def test_a_large_file_is_read_once(large: Path, reads: list[str], tmp_path: Path) -> None:
    first = remembered_sha256(large, tmp_path / "cache")
    assert (
        remembered_sha256(large, tmp_path / "cache")
        == first
        == hashlib.sha256(large.read_bytes()).hexdigest()
    )
    assert len(reads) == 1


def test_a_changed_file_is_read_again(large: Path, reads: list[str], tmp_path: Path) -> None:
    remembered_sha256(large, tmp_path / "cache")
    content = bytearray(large.read_bytes())
    content[7] ^= 1
    large.write_bytes(content)
    os.utime(large, ns=(0, large.stat().st_mtime_ns + 1))
    assert remembered_sha256(large, tmp_path / "cache") == hashlib.sha256(content).hexdigest()
    assert len(reads) == 2


def test_a_cache_that_cannot_be_written_costs_nothing_but_time(large: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    assert remembered_sha256(large, tmp_path / "file") == sha256(large)


def test_fresh_hashing_ignores_what_is_remembered(
    large: Path, reads: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(hashing, "_CACHE", tmp_path / "cache")
    monkeypatch.setattr(hashing.remembered_sha256, "__defaults__", (tmp_path / "cache",))
    for _ in range(2):
        hash_files(large.parent, [large.name], fresh=True)
    assert len(reads) == 2


def test_every_file_below_a_folder_is_hashed_by_relative_name(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/b").write_bytes(b"b")
    (tmp_path / "a").write_bytes(b"a")
    assert hash_files(tmp_path) == {
        "a": hashlib.sha256(b"a").hexdigest(),
        "sub/b": hashlib.sha256(b"b").hexdigest(),
    }
