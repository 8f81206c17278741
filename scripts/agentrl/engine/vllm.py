"""The fast engine: vLLM in this process, one row at a time handed to its scheduler, token ids in and out.

Three things are made to hold:

- Log-probabilities are those of `engine.base.Sample`. vLLM offers them at temperature 1 (`raw_logprobs`) or behind top-k and top-p
  (`processed_logprobs`), neither of which a trainer computes. So the temperature is applied where logits leave the model, in float32, and
  vLLM samples at temperature 1: its raw log-probabilities are then the temperature-scaled, untruncated ones.
- A row's randomness depends on its key alone (`SamplingParams.seed`). Ids do not depend on neighbours up to floating point: batch shape
  and prefix cache move logits in the last bits, which can flip a near tie. VLLM_BATCH_INVARIANT=1 removes that where vLLM supports it.
- In training, rows come from the current policy. The adapter is handed over as an adapter at every step. Merging it into bfloat16 weights
  would lose it: a step of 1e-5 is below half a unit in the last place of most weights, and W + BA rounds back to W.

With min-p and top-p both active vLLM applies min-p first, transformers last: the kept sets can then differ.
"""

import os
import tempfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil, isfinite
from pathlib import Path
from typing import Any

os.environ.setdefault(
    "VLLM_ENABLE_V1_MULTIPROCESSING", "0"
)  # the trainer's process is the engine's: one GPU, no copy between them
os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")  # it knows no seeds per row
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")  # nothing leaves this machine
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")

import torch
import vllm
from vllm.lora.request import LoRARequest
from vllm.sampling_params import RequestOutputKind

from agentrl.evidence.files import read_json
from agentrl.policy.settings import Model
from agentrl.rollout.sampler import Answer, EngineError, Request, Sample, serve_once
from agentrl.rollout.seeding import stream
from agentrl.rollout.settings import Decoding

MAX_ROWS = 512
"""Rows decoded at once; vLLM's scheduler queues the rest and refills."""
MAX_LENGTH = 32_768
"""Longest row, prompt included, where the policy allows more."""
PREFILL = 8192
"""Prompt tokens computed in one pass, at least; prompts are never cut."""
SHARE = 0.9
"""Of the free GPU memory, where nothing else needs the GPU."""
BLOCK = 128
"""KV cache is reserved in blocks; no attention kernel's are larger (FlashAttention on Hopper: 16)."""
WORKSPACE = 3 * 2**30
"""Bytes for activations, CUDA graphs and kernels beside weights and KV cache, on the generous side."""
RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""LoRA ranks that vLLM's kernels are built for."""


@dataclass(frozen=True)
class Beside:
    """What a trainer on the same GPU wants sampled: the engine takes the memory for that and no more."""

    rows: int
    """Episodes of one step."""
    length: int
    """Tokens of the longest row, prompt included."""
    rank: int
    """Of the adapter in training."""


class VllmEngine:
    """Samples from a checkpoint folder, or beside a trainer from the checkpoint under the adapter that `follow` was given last.

    Args:
        folder: the checkpoint; its tokenizer is not used.
        section: dtype and device.
        decoding: sampling settings, the same for every row.
        stop_ids: ids that end a row, no others; the stop id itself is part of the sample.
        beside: set where a trainer uses the same GPU.

    Raises:
        EngineError: vLLM did not start.
    """

    name = "vllm"
    queue = 1024
    """Rows taken at once: far more than are decoded together, few enough to show progress."""

    def __init__(
        self,
        folder: Path,
        section: Model,
        decoding: Decoding,
        stop_ids: Collection[int],
        beside: Beside | None = None,
    ) -> None:
        self.section, self.decoding, self.stop_ids, self.beside = (
            section,
            decoding,
            sorted(stop_ids),
            beside,
        )
        shape = read_json(folder / "config.json")
        self.vocabulary = int(shape["vocab_size"])
        self.length = min(
            int(shape["max_position_embeddings"]), beside.length if beside else MAX_LENGTH
        )
        self.adapter: LoRARequest | None = None
        self._scratch = tempfile.TemporaryDirectory(
            prefix="policy-",
            dir="/dev/shm" if Path("/dev/shm").is_dir() else None,  # noqa: S108
        )
        self._served = self._steps = 0
        self._failure: str | None = None
        memory = _memory(folder, shape, section, beside, self.length)
        with self._faults("did not start", "free the GPU, or set model.engine to transformers"):
            self.llm = vllm.LLM(
                model=str(folder),
                skip_tokenizer_init=True,
                generation_config="vllm",  # the folder's own would add stop ids and sampling defaults
                dtype=section.dtype,
                max_model_len=self.length,
                max_num_seqs=beside.rows if beside else MAX_ROWS,
                max_num_batched_tokens=_pass(self.length, beside),
                enable_chunked_prefill=False,  # else a row's random stream moves with how its prompt was cut, that is with its neighbours
                enforce_eager=section.device == "cpu",
                disable_log_stats=True,
                trust_remote_code=False,
                load_format="safetensors",
                kernel_config={
                    "enable_flashinfer_autotune": False
                },  # no kernel of FlashInfer's is used
                **memory,
                **(
                    {
                        "enable_lora": True,
                        "max_loras": 1,
                        "max_cpu_loras": 1,
                        "max_lora_rank": _rank(beside.rank),
                    }
                    if beside
                    else {}
                ),
            )
            self.llm.apply_model(self._apply_temperature)

    def describe(self) -> dict[str, Any]:
        """Engine, versions, dtype, device and what changes numerics."""
        numerics = {
            "dtype": f"torch.{self.section.dtype}",
            "batch_invariant": os.environ.get("VLLM_BATCH_INVARIANT", "0") == "1",
        }
        versions = {"vllm": vllm.__version__, "torch": torch.__version__}
        return {"engine": self.name, "device": self.section.device, **numerics, **versions}

    def generate(self, requests: Sequence[Request]) -> list[Sample]:
        """Sample every request once; results in request order."""
        return serve_once(self, requests)

    def serve(self, requests: Sequence[Request], answer: Answer) -> None:
        """Sample rows until each has ended; a row's next request joins the batch at once (`engine.base.serve`)."""
        rows: dict[str, int] = {}
        for row, request in enumerate(requests):
            rows[self._add(request)] = row
        while rows:
            with self._faults(f"failed with {len(rows)} rows running", "see the log for the cause"):
                finished = [output for output in self.llm.llm_engine.step() if output.finished]
                samples = [
                    (rows.pop(output.request_id), self._sample(output.outputs[0]))
                    for output in finished
                ]
            for row, sample in samples:
                following = answer(row, sample)
                if following is not None:
                    rows[self._add(following)] = row

    def follow(self, model: Any) -> None:
        """Sample from `model`'s adapter as it is now. The prefix cache goes: its entries are the former policy's.

        Args:
            model: a PEFT model over this engine's checkpoint.
        """
        self._steps += 1
        folder = (
            Path(self._scratch.name) / "adapter"
        )  # read at once, so the next step may write over it
        with self._faults("did not take the adapter", "see the log for the cause"):
            model.save_pretrained(folder)
            self.adapter = LoRARequest(f"policy-{self._steps}", self._steps, str(folder))
            if not (self.llm.llm_engine.add_lora(self.adapter) and self.llm.reset_prefix_cache()):
                raise RuntimeError(f"adapter {self._steps} was refused")

    def _add(self, request: Request) -> str:
        """Queue one request under a name of its own."""
        if request.max_tokens < 1 or not request.context:
            raise EngineError(
                f"row {request.key}: needs a context and room for one token, got {request.max_tokens}"
            )
        if len(request.context) + request.max_tokens > self.length:
            raise EngineError(
                f"row {request.key}: {len(request.context)} tokens and {request.max_tokens} to come exceed the engine's {self.length}; "
                "shorten prompt or budget"
            )
        if not 0 <= min(request.context) <= max(request.context) < self.vocabulary:
            raise EngineError(
                f"row {request.key}: an id is outside the vocabulary of {self.vocabulary}"
            )
        self._served += 1
        name = str(self._served)
        with self._faults("did not take a row", "see the log for the cause"):
            prompt = {"prompt_token_ids": request.context}
            self.llm.llm_engine.add_request(
                name, prompt, self._params(request), lora_request=self.adapter
            )
        return name

    def _params(self, request: Request) -> vllm.SamplingParams:
        decoding = self.decoding
        return vllm.SamplingParams(
            temperature=1.0 if decoding.temperature else 0.0,
            top_p=decoding.top_p,
            top_k=decoding.top_k,
            min_p=decoding.min_p,
            seed=int(stream(*request.key).integers(2**63)),
            max_tokens=request.max_tokens,
            stop_token_ids=self.stop_ids,
            ignore_eos=True,
            logprobs=0,  # of the sampled id alone
            flat_logprobs=True,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )

    def _sample(self, output: Any) -> Sample:
        ids, logprobs = list(output.token_ids), list(output.logprobs.logprobs)
        if len(logprobs) != len(ids) or not all(map(isfinite, logprobs)):
            raise RuntimeError("the model returned logits that are not finite")
        if output.finish_reason not in ("stop", "length"):
            raise RuntimeError(f"a row ended by {output.finish_reason!r}")
        return Sample(ids, [round(score, 6) for score in logprobs], output.finish_reason)

    def _apply_temperature(self, model: torch.nn.Module) -> None:
        """Let logits leave the model divided by the temperature, in float32 as the trainer has them."""
        temperature = self.decoding.temperature or 1.0

        def scaled(_module: torch.nn.Module, _arguments: Any, logits: torch.Tensor) -> torch.Tensor:
            return logits.float() / temperature

        model.logits_processor.register_forward_hook(scaled)  # type: ignore[union-attr, operator]

    @contextmanager
    def _faults(self, what: str, advice: str) -> Iterator[None]:
        """Whatever vLLM or the device raises is an engine fault, and an engine that failed once is not asked again: it may spin."""
        if self._failure:
            raise EngineError(f"vllm engine {self._failure} before; start the stage anew")
        try:
            yield
        except Exception as error:
            self._failure = what
            raise EngineError(
                f"vllm engine {what}: {type(error).__name__}: {error}; {advice}"
            ) from error


def _pass(length: int, beside: Beside | None) -> int:
    """Tokens of one pass, at most what the rows of a step have together.

    vLLM 0.26 warms up with a full pass; where that is more than its block tables hold, FlashAttention reads out of bounds ("illegal memory
    access" on an H200).
    """
    return max(length, PREFILL if beside is None else min(PREFILL, beside.rows * length))


def _rank(rank: int) -> int:
    try:
        return next(size for size in RANKS if size >= rank)
    except StopIteration:
        raise EngineError(
            f"training.lora.r: {rank} is above vLLM's largest, {RANKS[-1]}; set model.engine to transformers"
        ) from None


def cache_bytes(shape: dict[str, Any], section: Model, rows: int, length: int) -> int:
    """KV cache for so many rows at full length: 2 x layers x KV heads x head width x bytes of a number, per token."""
    heads = shape.get("head_dim") or shape["hidden_size"] // shape["num_attention_heads"]
    token = (
        2
        * shape["num_hidden_layers"]
        * shape["num_key_value_heads"]
        * heads
        * (2 if section.dtype == "bfloat16" else 4)
    )
    return int(token * BLOCK * (rows * (ceil(length / BLOCK) + 1) + 1))


def _memory(
    folder: Path, shape: dict[str, Any], section: Model, beside: Beside | None, length: int
) -> dict[str, Any]:
    """Memory arguments of vLLM: a cache for every row at full length; without a trainer what is free, if that is less.

    More is not only wasted: vLLM lists the blocks of its cache one by one, 20 s for the 125 GiB of an H200 and a policy of 0.6 million
    parameters.

    Raises:
        EngineError: the GPU has too little left.
    """
    cache = cache_bytes(shape, section, beside.rows if beside else MAX_ROWS, length)
    if section.device == "cpu":
        return {"kv_cache_memory_bytes": cache} if beside else {}
    free, total = torch.cuda.mem_get_info()
    weights = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    rest = weights + WORKSPACE
    needed = rest + cache if beside else rest
    if needed > free:
        name, gib = torch.cuda.get_device_name(), 2**30
        raise EngineError(
            f"vllm engine needs {needed / gib:.1f} GiB ({weights / gib:.1f} for weights), "
            f"{free / gib:.1f} of {total / gib:.1f} GiB are free on {name}; "
            "free the GPU, lower training.batch_size, or set model.engine to transformers"
        )
    arguments = {"gpu_memory_utilization": SHARE * free / total}
    if beside or rest + cache <= SHARE * free:
        arguments["kv_cache_memory_bytes"] = cache
    return arguments
