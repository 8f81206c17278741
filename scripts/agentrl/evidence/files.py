"""Reading, writing and checking recorded files: atomic writes, JSON with equal bytes for equal data, refusals that name the file."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentrl.evidence.errors import StudyError
from agentrl.evidence.hashing import hash_files

VERSION = 1


class ManifestError(StudyError, ValueError):
    """A file is missing, damaged or not the one that was recorded; the message names it, what was expected and what was found."""


def check_files(folder: str | Path, expected: Mapping[str, str], source: str | Path) -> None:
    """Refuse a folder whose files are not those that `source` recorded. Raises `ManifestError` at the first difference."""
    folder = Path(folder)
    for name in expected:
        if not (folder / name).is_file():
            raise ManifestError(
                f"{folder / name}: missing, but recorded in {source}; rerun the stage that wrote it"
            )
    for name, found in hash_files(folder, list(expected)).items():
        if found != expected[name]:
            raise ManifestError(
                f"{folder / name}: changed since {source} recorded it (expected sha256 {expected[name]}, found {found}); "
                "restore the file, or delete it and rerun the stage that wrote it"
            )


def dump(data: Any) -> str:
    """Readable JSON with sorted keys: equal data, equal bytes."""
    return json.dumps(data, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"


def write_text(path: str | Path, text: str) -> None:
    """Write a file in one step: a reader sees the old content or the new, never half of it."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    scratch.write_text(text, encoding="utf-8")
    os.replace(scratch, path)


def write_json(path: str | Path, data: Any) -> None:
    """`dump` to a file, in one step."""
    write_text(path, dump(data))


def read_json(path: str | Path) -> Any:
    """Parse a JSON file. Raises `ManifestError` naming the file."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ManifestError(
            f"{path}: cannot be read ({error.strerror}); rerun the stage that writes it"
        ) from None
    except ValueError as error:
        raise ManifestError(
            f"{path}: not JSON ({error}); delete it and rerun the stage that writes it"
        ) from None
