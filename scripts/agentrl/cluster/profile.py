"""What profiles compute: which scheduler, what a GPU job asks for, how GPU rules start Python, and which packages that must have.

The profile is read before the Snakefile, by the snakemake a user starts and by no job. What jobs need to know travels as an environment
variable, and is no rerun trigger: another interpreter or container for the GPU rules reruns nothing, another lock the look at the node.
"""

import importlib.util
import os
import re
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agentrl.cluster.slurm import NoAnswerError, SlurmError, check_partition, status_command
from agentrl.evidence.errors import StudyError

SCHEDULERS = ("slurm", "determined")
CHOICE = "PIPELINE_SCHEDULER"
GPU_PYTHON = "PIPELINE_GPU_PYTHON"
"""Command that starts Python for GPU rules; set by a user it overrides the profile."""
GPU_LOCK = "PIPELINE_GPU_LOCK"
"""File that pins the packages of GPU rules; unset, the one for the study's device (`DEFAULT_LOCKS`)."""
DEFAULT_LOCKS = {"cpu": "envs/cpu.txt", "cuda": "envs/gpu.txt"}
"""`model.device` -> lock."""
_RULE = re.compile(r"^ *rule (\w+):\n(.*?)(?=^ *(?:rule|checkpoint) |\Z)", re.MULTILINE | re.DOTALL)


class ProfileError(StudyError, ValueError):
    """A setting of the profile or its environment is wrong; the message names it and what is allowed."""


_PLAN = re.compile(r"-[A-Za-z]*n[A-Za-z]*|--dry-?run")


def is_plan(arguments: Sequence[str]) -> bool:
    """Whether a command line of snakemake asks for a dry run; options of one letter may stand together (`-np`)."""
    return any(_PLAN.fullmatch(argument) for argument in arguments)


def choose_scheduler(environment: Mapping[str, str] = os.environ, *, plan: bool = False) -> str:
    """The scheduler: PIPELINE_SCHEDULER, else what is installed. Raises `ProfileError` for an unknown or absent one.

    Args:
        environment: variables of this process.
        plan: nothing will be submitted, so none needs to be there; what is planned is the same with each.
    """
    named = environment.get(CHOICE)
    if named is not None and named not in SCHEDULERS:
        raise ProfileError(
            f"{CHOICE}={named}: no such scheduler; allowed are {' and '.join(SCHEDULERS)}, or leave it unset"
        )
    if plan and not shutil.which("sbatch") and not environment.get("DET_MASTER"):
        return named or SCHEDULERS[0]
    if named == "slurm" and not shutil.which("sbatch"):
        raise ProfileError(
            f"{CHOICE}=slurm: sbatch is not on PATH; load Slurm's clients (module load slurm), or run on the login node"
        )
    if named is None and shutil.which("sbatch"):
        named = "slurm"
    if named is None and environment.get("DET_MASTER"):
        named = "determined"
    if named is None:
        raise ProfileError(
            f"no scheduler found: neither sbatch on PATH (slurm) nor DET_MASTER set (determined); set {CHOICE} to one of "
            f"{', '.join(SCHEDULERS)} where it is installed, or use --profile profiles/local on a machine with a GPU"
        )
    if not importlib.util.find_spec(f"snakemake_executor_plugin_{named}"):
        raise ProfileError(
            f"{named}: snakemake's executor plugin is not installed under {sys.executable}; pip install -r envs/cpu.txt"
        )
    return named


def gpu_python(
    scheduler: str, python: str | None, image: str | None, bind_mounts: list[str]
) -> str:
    """Command that starts Python for GPU rules. Raises `ProfileError` for settings that exclude each other.

    Args:
        scheduler: Determined starts the whole job in its image; with Slurm the rule's command enters the container.
        python: an interpreter, or None.
        image: a container image, or None.
        bind_mounts: `HOST[:CONTAINER[:ro]]`, seen in the container beside the working directory.
    """
    if python and image:
        raise ProfileError(
            f"profiles/gpu/config.yaml: python ({python}) and image ({image}) exclude each other; set one to null"
        )
    if image and scheduler == "slurm":
        mounts = [part for mount in [str(Path.cwd()), *bind_mounts] for part in ("--bind", mount)]
        return shlex.join(["apptainer", "exec", "--nv", *mounts, image, "python"])
    return shlex.quote(python) if python else "python"


def hold_to(lock: str | None) -> None:
    """Hold nodes to a profile's lock, unless the user's environment names one; None leaves it to the study's device."""
    if lock is not None:
        os.environ.setdefault(GPU_LOCK, lock)


def lock_of(device: str, environment: Mapping[str, str] = os.environ) -> str:
    """The file whose pins a node must have. Raises `ProfileError` where there is no such file.

    Args:
        device: `model.device`.
        environment: variables of this process.
    """
    lock = environment.get(GPU_LOCK, DEFAULT_LOCKS[device])
    if not Path(lock).is_file():
        source = (
            f"{GPU_LOCK}, or `lock` in the profile"
            if GPU_LOCK in environment
            else f"the default for model.device: {device}"
        )
        raise ProfileError(f"{lock or repr(lock)}: no such file ({source}); name one that pins the packages of GPU rules, as seen from the "
                           "folder of the Snakefile, e.g. envs/gpu.txt")  # fmt: skip
    return lock


def gpu_rules(folder: Path = Path("rules")) -> list[str]:
    """Names of the rules that ask for a GPU, read from the rule files."""
    texts = [path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.smk"))]
    return [name for text in texts for name, body in _RULE.findall(text) if "gpu=1" in body]


def resources(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What a GPU job asks for; each attempt for more than the one before.

    Args:
        settings: the profile's variables `memory_mb`, `minutes`, `partition`, `account`, `gpus_as`, `gpu_model`.
    """
    asked = {
        "mem_mb": f"{settings['memory_mb']} * attempt",
        "runtime": f"{settings['minutes']} * attempt",
    }
    if settings["partition"]:
        asked["slurm_partition"] = settings["partition"]
    if settings["account"]:
        asked["slurm_account"] = settings["account"]
    if settings["gpu_model"] and settings["gpus_as"] == "gpus":
        asked["gpu_model"] = settings["gpu_model"]
    return asked


def rule_resources(settings: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Changes to single rules: `--gres` in place of `--gpus`. Raises `ProfileError` for another word than gpus or gres."""
    if settings["gpus_as"] not in ("gpus", "gres"):
        raise ProfileError(
            f"profiles/gpu/config.yaml: gpus_as is {settings['gpus_as']!r}; allowed are gpus and gres"
        )
    if settings["gpus_as"] == "gpus":
        return {}
    gres = ":".join(["gpu", *([settings["gpu_model"]] if settings["gpu_model"] else []), "1"])
    return {rule: {"gpu": 0, "gres": gres} for rule in gpu_rules()}


class Plan:
    """Everything the profile's lower part says, from the variables of its upper part.

    Args:
        settings: the profile's variables.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        plan = is_plan(sys.argv[1:])
        self.scheduler = choose_scheduler(plan=plan)
        self.resources, self.rule_resources = resources(settings), rule_resources(settings)
        python = gpu_python(
            self.scheduler, settings["python"], settings["image"], settings["bind_mounts"]
        )
        os.environ.setdefault(GPU_PYTHON, python)
        hold_to(settings["lock"])
        self.variables = [name for name in (GPU_PYTHON, GPU_LOCK) if name in os.environ]
        """What a job must be told."""
        self.status_command = (
            self._ask_slurm(settings["partition"])
            if self.scheduler == "slurm" and not plan
            else None
        )

    @staticmethod
    def _ask_slurm(partition: str | None) -> str | None:
        """How to ask for finished jobs, after a look at the partition; None where Slurm is away, for a plan does without."""
        try:
            if partition:
                check_partition(partition)
            return status_command()
        except NoAnswerError:
            return None


def plan(settings: Mapping[str, Any]) -> Plan:
    """`Plan`, ending snakemake with one line where a setting is wrong: YTE would wrap an exception into three others."""
    try:
        return Plan(settings)
    except (ProfileError, SlurmError) as error:
        sys.exit(f"error: {error}")
