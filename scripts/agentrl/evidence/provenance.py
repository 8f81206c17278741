"""Where and with what a stage ran: commit, packages, host class, accelerator, container. Never an input of a rule, and no names."""

import os
import platform
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from agentrl.evidence.hashing import remembered_sha256

PACKAGES = (
    "torch",
    "transformers",
    "trl",
    "peft",
    "datasets",
    "accelerate",
    "tokenizers",
    "numpy",
    "pandas",
    "scipy",
    "snakemake",
    "vllm",
)
DIGEST_VARIABLE = "AGENTRL_CONTAINER_DIGEST"
"""Set by a profile that starts jobs in an image it knows by digest."""
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_RUNTIMES = re.compile(r"docker|kubepods|containerd|libpod|lxc")


def environment() -> dict[str, Any]:
    """Everything about this process that its results do not follow from."""
    return {
        "commit": commit(),
        "dirty": bool(_git("status", "--porcelain", "--untracked-files=no")),
        "python": platform.python_version(),
        "packages": {name: found for name in PACKAGES if (found := _installed(name)) is not None},
        "host": host_class(),
        "container": container(),
        **accelerator(),
    }


def commit() -> str | None:
    """Commit of the checkout this code lies in; None outside one."""
    return _git("rev-parse", "HEAD")


def host_class() -> dict[str, Any]:
    """What kind of machine this is; not which one."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 30
    return {
        "platform": platform.platform(),
        "processor": _processor(),
        "cpus": os.cpu_count(),
        "memory_gib": memory,
    }


def _processor() -> str:
    try:
        found = re.search(
            r"^model name\s*:\s*(.+)$",
            Path("/proc/cpuinfo").read_text(encoding="utf-8"),
            re.MULTILINE,
        )
    except OSError:
        return platform.machine()
    return found[1] if found else platform.machine()


def container(root: Path = Path("/")) -> dict[str, str]:
    """Digest of the container image this process runs in, and how it is known.

    `none` where nothing hints at a container, `unknown` where one is evident but its image cannot be told: never a guess.

    Args:
        root: where the runtime's files are looked for.
    """
    declared = os.environ.get(DIGEST_VARIABLE, "")
    if _DIGEST.fullmatch(declared):
        return {"digest": declared, "source": DIGEST_VARIABLE}
    image = os.environ.get("APPTAINER_CONTAINER") or os.environ.get("SINGULARITY_CONTAINER")
    if image is not None:
        known = Path(image).is_file()
        return {
            "digest": f"sha256:{remembered_sha256(image)}" if known else "unknown",
            "source": "Apptainer image",
        }
    podman = root / "run" / ".containerenv"
    if podman.is_file() and (
        found := re.search(r'imageid="([0-9a-f]{64})"', podman.read_text(encoding="utf-8"))
    ):
        return {"digest": f"sha256:{found[1]}", "source": "/run/.containerenv"}
    if podman.exists() or (root / ".dockerenv").exists() or _in_container_cgroup(root):
        return {"digest": "unknown", "source": "runtime files"}
    return {"digest": "none", "source": "no sign of a container"}


def _in_container_cgroup(root: Path) -> bool:
    try:
        return bool(_RUNTIMES.search((root / "proc" / "1" / "cgroup").read_text(encoding="utf-8")))
    except OSError:
        return False


def accelerator() -> dict[str, Any]:
    """GPU, driver and CUDA, only where torch is loaded already: provenance must not cost an import."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return {"gpu": "none"}
    return {
        "gpu": torch.cuda.get_device_name(),
        "driver": driver() or "unknown",
        "cuda": torch.version.cuda,
        "gpu_peak_memory_mb": torch.cuda.max_memory_allocated() >> 20,
    }


def driver(file: Path = Path("/proc/driver/nvidia/version")) -> str | None:
    """Version of NVIDIA's kernel module; None where it is not loaded."""
    try:
        found = re.search(r"Kernel Module\b.*?\s(\d+\.[\d.]+)", file.read_text(encoding="utf-8"))
    except OSError:
        return None
    return found[1] if found else None


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", *arguments],
            capture_output=True,
            text=True,
            timeout=10,
            cwd=Path(__file__).parent,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
