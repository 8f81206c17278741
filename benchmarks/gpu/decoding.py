"""Tokens per second of one method at one number of sequences.

Each cell runs three times on prompts of its own: a warm-up that is not counted (compilation, graphs, workspaces), one sampled token per
sequence for the prompts' share, and the timed run. Lengths are fixed, because a random policy never ends a turn: no stop id can be
sampled, or at least as many tokens are forced as allowed.
"""

import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any, Protocol

import torch
from transformers import ContinuousBatchingConfig, GenerationConfig, PreTrainedModel

from agentrl.engine.transformers import TransformersEngine
from agentrl.evidence.errors import StudyError
from agentrl.policy.settings import Model
from agentrl.rollout.sampler import Engine, Request
from agentrl.rollout.settings import Decoding
from benchmarks.gpu.limit import synchronize
from benchmarks.gpu.scale import Scale

WARM_TOKENS = 4
"""Of methods that compile nothing."""
COMPILES_NOTHING = ("hf-sequential", "hf-batched", "dynamic")
CONTINUOUS = {"hf-continuous": 0, "hf-continuous-compiled": 2}
"""Method -> transformers' `default_compile_level` of continuous batching."""
Prompts = Sequence[Sequence[int]]


class NotInstalledError(StudyError, RuntimeError):
    """A method's package is not there: the cell says so and the benchmark goes on."""


class Method(Protocol):
    """Continues every prompt by so many tokens; returns how many were sampled."""

    def __call__(self, prompts: Prompts, new: int) -> int:
        """Sample."""
        ...


def sequential(model: PreTrainedModel, decoding: Decoding) -> Method:
    """`generate`, one sequence after another: how the pilot evaluated."""
    return lambda prompts, new: sum(_generate(model, decoding, [prompt], new) for prompt in prompts)


def batched(model: PreTrainedModel, decoding: Decoding) -> Method:
    """`generate` on one batch."""
    return lambda prompts, new: _generate(model, decoding, prompts, new)


def _generate(model: PreTrainedModel, decoding: Decoding, prompts: Prompts, new: int) -> int:
    ids = torch.tensor([list(prompt) for prompt in prompts], device=model.device)
    settings = {
        "temperature": decoding.temperature,
        "top_p": decoding.top_p,
        "top_k": decoding.top_k,
    }
    with torch.inference_mode():
        out = model.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, min_new_tokens=new, do_sample=True, pad_token_id=0,
            **settings,
        )  # fmt: skip
    return int(out[:, ids.shape[1] :].numel())


def continuous(model: PreTrainedModel, decoding: Decoding, level: int) -> Method:
    """`generate_batch`: transformers' continuous batching over a paged cache, its own sampler.

    The manager is kept, so that the warm-up captures what the timed run replays. No prefix is shared by random prompts.

    Args:
        model: loaded weights.
        decoding: temperature, top-p and top-k; transformers draws the random numbers.
        level: its `default_compile_level`; 0 compiles nothing, CUDA graphs are its own choice.
    """
    sampled = GenerationConfig(
        do_sample=True,
        temperature=decoding.temperature,
        top_p=decoding.top_p,
        top_k=decoding.top_k,
        eos_token_id=-1,
        pad_token_id=0,
    )
    config = ContinuousBatchingConfig(allow_block_sharing=False, default_compile_level=level)

    def method(prompts: Prompts, new: int) -> int:
        rows = [list(prompt) for prompt in prompts]
        found = model.generate_batch(
            rows, sampled, config, max_new_tokens=new, persistent_manager=True
        )
        short = [len(row.generated_tokens) for row in found.values()]
        if len(short) != len(rows) or set(short) != {new}:
            raise RuntimeError(f"{len(short)} of {len(rows)} rows, lengths {sorted(set(short))}")
        return sum(short)

    return method


def ours(engine: Engine) -> Method:
    """Any engine of this project."""
    runs = iter(range(1_000_000))

    def method(prompts: Prompts, new: int) -> int:
        run = next(runs)
        rows = [
            Request(list(prompt), new, ("benchmark", run, row))
            for row, prompt in enumerate(prompts)
        ]
        return sum(len(sample.ids) for sample in engine.generate(rows))

    return method


def hf_method(model: PreTrainedModel, decoding: Decoding, name: str) -> Method:
    """A method that calls `generate`."""
    if name in CONTINUOUS:
        return continuous(model, decoding, CONTINUOUS[name])
    return sequential(model, decoding) if name == "hf-sequential" else batched(model, decoding)


def transformers_engine(
    model: PreTrainedModel, decoding: Decoding, loop: str, slots: int
) -> TransformersEngine:
    """Our engine over loaded weights; no row stops early, because its only stop id lies outside the vocabulary."""
    return TransformersEngine(model, decoding, [model.config.vocab_size], 0, loop, slots=slots)  # type: ignore[arg-type]


def vllm_section(scale: Scale) -> Model:
    """The `model` section that asks for vLLM. Raises `NotInstalledError`."""
    if find_spec("vllm") is None:
        raise NotInstalledError("vllm is not installed")
    if "engine" not in Model.model_fields:
        raise NotInstalledError("this checkout has no vLLM engine")
    return Model.model_validate(scale.model.model_dump() | {"engine": "vllm"})


def vllm_engine(folder: Path, scale: Scale, decoding: Decoding) -> Engine:
    """The vLLM engine over a checkpoint, without stop ids. Raises `NotInstalledError`."""
    section = vllm_section(scale)
    from agentrl.engine.vllm import VllmEngine  # only where it is installed

    return VllmEngine(folder, section, decoding, [])


def measure(method: Method, name: str, scale: Scale, count: int) -> dict[str, Any]:
    """One cell: tokens, seconds, and the decode rate without the prompts' share.

    Args:
        method: what to time.
        name: the method's name in `scale`.
        scale: sizes.
        count: sequences at once.
    """
    new = scale.new[name]
    run = f"{name}/{count}"
    warm = WARM_TOKENS if name in COMPILES_NOTHING else new
    _, startup = timed(lambda: method(prompts(scale, count, f"{run}/warm"), warm), scale)
    first, prefill = timed(lambda: method(prompts(scale, count, f"{run}/first"), 1), scale)
    tokens, seconds = timed(lambda: method(prompts(scale, count, f"{run}/timed"), new), scale)
    facts = {
        "sequences": count,
        "prompt_tokens": scale.prompt,
        "new_tokens": new,
        "tokens": tokens,
        "seconds": round(seconds, 4),
        "startup_seconds": round(startup, 2),
        "prompt_seconds": round(prefill, 4),
        "tokens_per_second": round(tokens / seconds, 2),
    }
    if seconds > prefill:  # else the clock's noise is larger than the work
        facts["decode_tokens_per_second"] = round((tokens - first) / (seconds - prefill), 2)
    return facts


def timed(call: Callable[[], int], scale: Scale) -> tuple[int, float]:
    """What the call returned and its wall seconds, the device's work included."""
    synchronize(scale)
    began = time.perf_counter()
    found = call()
    synchronize(scale)
    return found, time.perf_counter() - began


def prompts(scale: Scale, count: int, run: str) -> Prompts:
    """Random ids, others for every run: no prefix cache may help."""
    random = Random(run)
    return [
        [random.randrange(3, scale.shape["vocab_size"]) for _ in range(scale.prompt)]
        for _ in range(count)
    ]
