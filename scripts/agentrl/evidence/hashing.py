"""sha256 of files: in parallel over files, and large ones only once while they stay untouched."""

import hashlib
import json
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

LARGE = 64 << 20
"""Bytes from which a digest is remembered: reading a checkpoint of gigabytes anew for every stage would cost more than the stages."""
_CHUNK = 1 << 22
_CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "agentrl" / "sha256"


def sha256(path: str | Path) -> str:
    """Hex digest of one file, read in full."""
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def remembered_sha256(path: str | Path, cache: Path = _CACHE) -> str:
    """Digest of a file; a large one is read only if its device, inode, size or modification time (ns) is new.

    Stages use this. Verification does not: an edit that restores the time stamp is found there.
    """
    stat = Path(path).stat()
    if stat.st_size < LARGE:
        return sha256(path)
    identity = [stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns]
    entry = cache / hashlib.sha256(json.dumps(identity).encode()).hexdigest()
    try:
        return entry.read_text(encoding="ascii")
    except OSError:
        digest = sha256(path)
    try:
        cache.mkdir(parents=True, exist_ok=True)
        scratch = entry.with_suffix(f".{os.getpid()}")
        scratch.write_text(digest, encoding="ascii")
        os.replace(scratch, entry)
    except OSError:
        pass  # a read-only home costs time, nothing else
    return digest


def hash_files(
    folder: str | Path, names: Sequence[str] | None = None, *, fresh: bool = False
) -> dict[str, str]:
    """Relative path -> sha256 of `names`, or of everything below `folder`; in parallel, for hashlib frees the interpreter lock.

    Args:
        folder: where the names lie.
        names: relative paths; None takes every file.
        fresh: read large files even if their digest is remembered.
    """
    folder = Path(folder)
    chosen = sorted(
        names
        if names is not None
        else (p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
    )
    digest = sha256 if fresh else remembered_sha256
    with ThreadPoolExecutor() as pool:
        return dict(zip(chosen, pool.map(lambda name: digest(folder / name), chosen), strict=True))
