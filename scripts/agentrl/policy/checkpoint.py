"""A policy's folder: a stage's manifest and the checkpoint under `model/`, checked before a weight is read.

Only safetensors are accepted and no code from a checkpoint counts. No torch here: freezing a stage or recording a start takes no weights.
"""

import shutil
from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError
from safetensors import SafetensorError, safe_open

from agentrl.evidence.errors import StudyError
from agentrl.evidence.files import ManifestError, check_files, read_json
from agentrl.policy.files import CHECKPOINT, TOKENIZER_FILES, files, weight_files
from agentrl.policy.settings import Model

TOKENIZER = "tokenizer"
"""Folder of the start's tokenizer files, kept beside its manifest."""
_FETCHED = ("*.safetensors", "*.json", "*.jinja", "*.txt")


class PolicyError(StudyError, ValueError):
    """A checkpoint or device cannot serve as a policy; the message names the file and what to do."""


def locate(section: Model) -> Path:
    """Folder of the start checkpoint: a local folder as it is, a hub id from the hub's cache, fetched once."""
    start = str(section.start)
    if Path(start).is_dir():
        if section.revision is not None:
            raise PolicyError(
                f"model.revision: {section.revision!r} is set but model.start {start!r} is a local folder; set it to null"
            )
        return Path(start).resolve()
    if start.count("/") != 1 or start.startswith((".", "/")):
        raise PolicyError(
            f"model.start: no folder {start!r}; give the folder of a checkpoint, or a hub id as owner/name"
        )
    try:
        return Path(
            snapshot_download(start, revision=section.revision, allow_patterns=list(_FETCHED))
        )
    except (OSError, ValueError, HfHubHTTPError) as error:  # offline, no such repository, bad name
        raise PolicyError(
            f"model.start: {start!r} is no local folder and cannot be fetched from the hub ({type(error).__name__})"
        ) from None


def check_checkpoint(folder: Path) -> list[str]:
    """Names of the checkpoint's files. Refuses one that is missing, half-written, pickled or without a tokenizer."""
    if not (folder / "config.json").is_file():
        raise PolicyError(
            f"{folder}: no config.json, so no checkpoint; give the folder that save_pretrained wrote"
        )
    weights = _weight_files(folder)
    for name in weights:
        _check_weights(folder / name)
    names = files(folder)
    if "tokenizer.json" not in names:
        raise PolicyError(f"{folder}: no tokenizer.json; the tokenizer must lie beside the weights")
    return names


def _weight_files(folder: Path) -> list[str]:
    if names := weight_files(folder):
        return names
    pickled = sorted(p.name for p in folder.glob("*.bin"))
    hint = (
        f"found {pickled[0]}: pickled weights are refused, convert them to safetensors"
        if pickled
        else "no model.safetensors"
    )
    raise PolicyError(f"{folder}: no weights in safetensors format ({hint})")


def _check_weights(path: Path) -> None:
    """A safetensors file's header and length must agree: an interrupted copy is found here, not as noise later."""
    try:
        with safe_open(path, framework="numpy") as tensors:
            if not list(tensors.keys()):
                raise PolicyError(f"{path}: holds no tensor")
    except (SafetensorError, OSError) as error:
        raise PolicyError(
            f"{path}: incomplete or damaged ({error}); copy or save the checkpoint again"
        ) from None


def copy_tokenizer(checkpoint: Path, out: Path) -> list[str]:
    """Keep the tokenizer beside the evidence, byte for byte: whoever verifies a study needs it, but no weights. Names below `out`."""
    (out / TOKENIZER).mkdir(parents=True, exist_ok=True)
    names = [name for name in TOKENIZER_FILES if (checkpoint / name).is_file()]
    for name in names:
        shutil.copyfile(checkpoint / name, out / TOKENIZER / name)
    return [f"{TOKENIZER}/{name}" for name in names]


def check_policy(manifest: str | Path) -> tuple[Path, dict[str, Any]]:
    """Checkpoint folder and manifest of a policy, every file compared with its recorded sha256."""
    content = read_json(manifest)
    recorded = {
        name.removeprefix(f"{CHECKPOINT}/"): digest
        for name, digest in content["outputs"].items()
        if name.startswith(f"{CHECKPOINT}/")
    }
    if not recorded:
        raise ManifestError(
            f"{manifest}: records no checkpoint under {CHECKPOINT}/; it is not a policy's manifest"
        )
    folder = Path(manifest).parent / CHECKPOINT
    check_files(folder, recorded, manifest)
    if added := sorted(set(check_checkpoint(folder)) - set(recorded)):
        raise ManifestError(
            f"{folder / added[0]}: not recorded in {manifest}, but would be loaded; remove it, or rerun its stage"
        )
    return folder, content
