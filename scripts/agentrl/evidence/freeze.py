"""One freeze per stage: the sha256 of exactly what the stage consumes, its configuration, and the upstream code our claims rest on.

A freeze of everything would make an edit of the report retrain the model. Stages read their configuration from their freeze,
compare what they are given with it, and refuse a change by name.
"""

import importlib.util
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from agentrl.evidence.errors import StudyError
from agentrl.evidence.files import VERSION, check_files, read_json
from agentrl.evidence.hashing import hash_files, sha256
from agentrl.evidence.section import Section, validate

T = TypeVar("T", bound=Section)
UPSTREAM: dict[str, tuple[str, ...]] = {
    "train": (
        "trl/trainer/grpo_trainer.py",
        "trl/trainer/utils.py",
        "trl/trainer/base_trainer.py",
        "trl/trainer/grpo_config.py",
        "trl/trainer/base_config.py",
        "trl/kernels/chunked_logprob.py",
        "transformers/training_args.py",
        "transformers/trainer.py",
        "transformers/trainer_optimizer.py",
        "transformers/trainer_pt_utils.py",
        "transformers/optimization.py",
        "transformers/cache_utils.py",
        "peft/config.py",
        "peft/mapping_func.py",
        "peft/tuners/lora/config.py",
        "peft/tuners/lora/layer.py",
    ),
    "agent": ("transformers/cache_utils.py", "transformers/models/qwen3/modeling_qwen3.py"),
    "retention": ("transformers/cache_utils.py", "transformers/models/qwen3/modeling_qwen3.py"),
}
"""Installed files whose behaviour the evidence relies on, by kind of stage.

Of a training: the loss, the defaults of its arguments, the optimizer loop, the schedule, the adapter. Not PyTorch's AdamW: a study may be
frozen beside one build of PyTorch and trained beside another, the arithmetic lies in compiled code that no hash of a module covers, and
its arguments are all set (`arguments`); a test watches the defaults of the few that nobody passes.
"""


class FreezeError(StudyError, ValueError):
    """Something a stage consumes is not what was frozen; the message names it, what was expected and what was found."""


def upstream(stage: str) -> dict[str, str]:
    """Installed file -> sha256, located without importing the package."""
    return {name: sha256(_installed(name)) for name in UPSTREAM[stage.split("-")[0]]}


def freeze(
    stage: str,
    files: Mapping[str, Path],
    folders: Mapping[str, tuple[Path, list[str]]],
    config: Mapping[str, Any],
) -> dict[str, Any]:
    """Content of one freeze file.

    Args:
        stage: `train`, `agent-dev`, `agent-test` or `retention`.
        files: role -> file.
        folders: role -> (folder, names in it), e.g. the tokenizer's files.
        config: section name -> validated content.
    """
    return {
        "version": VERSION,
        "stage": stage,
        "files": {role: sha256(path) for role, path in files.items()},
        "folders": {role: hash_files(folder, names) for role, (folder, names) in folders.items()},
        "upstream": upstream(stage),
        "config": dict(config),
    }


class Frozen:
    """A freeze file as a stage uses it."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.content = read_json(path)

    def section(self, name: str, model: type[T]) -> T:
        """One configuration section, validated again."""
        return validate(self.content["config"][name], model, f"{self.path}, section {name}")

    def check(self, files: Mapping[str, str | Path], folders: Mapping[str, Path]) -> None:
        """Compare what the stage was given, and the installed upstream code, with the freeze. Raises `FreezeError` or `ManifestError`."""
        for role, path in files.items():
            self._equal(
                f"{role} ({path})",
                self.content["files"][role],
                _digest(path),
                "restore the file, or rerun from the freeze on",
            )
        for role, folder in folders.items():
            check_files(folder, self.content["folders"][role], self.path)
        for name, expected in self.content["upstream"].items():
            self._equal(
                f"installed {name}",
                expected,
                _digest(_installed(name)),
                "use the environment the study was frozen with, or freeze anew",
            )

    def _equal(self, what: str, expected: str, found: str, advice: str) -> None:
        if expected != found:
            raise FreezeError(
                f"{what}: differs from {self.path} (expected sha256 {expected}, found {found}); {advice}"
            )


def present(folder: Path, names: Iterable[str]) -> list[str]:
    """Those of `names` that exist in a folder."""
    return [name for name in names if (folder / name).is_file()]


def _digest(path: str | Path) -> str:
    return sha256(path) if Path(path).is_file() else "no file"


def _installed(name: str) -> Path:
    package, _, rest = name.partition("/")
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise FreezeError(
            f"package {package!r} is not installed, but {name} is frozen; install the pinned requirements"
        )
    return Path(next(iter(spec.submodule_search_locations))) / rest
