"""The portable engine: batched decoding with a transformers model, on any device.

The decode loop is ours rather than `generate`'s because three things must hold at once: every row draws from its own random stream,
every row has its own budget, and a finished row leaves the batch at once. There are two loops: the dynamic one below, for CPUs and any
architecture, and `static` for Qwen3 on a GPU, which `benchmarks/gpu/run.py` measures beside it.
"""

import inspect
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
import transformers
from transformers import DynamicCache, PreTrainedModel

from agentrl.engine.sampling import choose_tokens
from agentrl.engine.static.loop import MAX_SLOTS, StaticLoop
from agentrl.engine.static.products import base_model, supported
from agentrl.rollout.sampler import (
    Answer,
    EngineError,
    Request,
    Sample,
    serve_in_rounds,
    serve_once,
)
from agentrl.rollout.seeding import stream
from agentrl.rollout.settings import Decoding

QUEUE = 1024
"""Rows that the static loop takes at once: more than are decoded together, few enough to show progress."""
Loop = Literal["auto", "dynamic", "graphed", "compiled"]
"""`graphed`: the static loop as CUDA graphs; `compiled`: its layers compiled as well. `auto`: compiled for Qwen3 on a GPU, else dynamic."""


class TransformersEngine:
    """Samples from `model` as it is now: during training that is the current policy, adapter included.

    Args:
        model: a causal language model; its mode and device are the caller's business.
        decoding: sampling settings, the same for every row.
        stop_ids: ids that end a row; the stop id itself is part of the sample.
        pad_id: fills shorter contexts, masked out.
        loop: how to decode.
        slots: rows at once in the static loop.
    """

    name = "transformers"

    def __init__(
        self, model: PreTrainedModel, decoding: Decoding, stop_ids: Collection[int], pad_id: int,
        loop: Loop = "auto", slots: int = MAX_SLOTS,
    ) -> None:  # fmt: skip
        self.model, self.decoding, self.pad_id = model, decoding, pad_id
        self.stop_ids = torch.tensor(sorted(stop_ids))
        self.wanted, self.most = loop, slots
        self.static: StaticLoop | None = None

    @property
    def loop(self) -> Loop:
        """The loop that decodes this model on its device."""
        if self.wanted != "auto":
            return self.wanted
        return (
            "compiled" if self.model.device.type == "cuda" and supported(self.model) else "dynamic"
        )

    def describe(self) -> dict[str, Any]:
        """Engine, loop, versions, dtype and device."""
        loop = "graphed" if self.static is not None and not self.static.compiled else self.loop
        versions = {"transformers": transformers.__version__, "torch": torch.__version__}
        return {
            "engine": self.name,
            "loop": loop,
            "dtype": str(self.model.dtype),
            "device": str(self.model.device),
            **versions,
        }

    @property
    def queue(self) -> int:
        """Rows taken at once beyond the configured batch: the static loop refills its slots, the dynamic one runs all rows it is given."""
        return 0 if self.loop == "dynamic" else QUEUE

    def generate(self, requests: Sequence[Request]) -> list[Sample]:
        """Sample every request as one batch."""
        if self.loop != "dynamic":
            return serve_once(self, requests)
        if not requests:
            return []
        with self._faults(len(requests)):
            return self._dynamic([_checked(request) for request in requests])

    def serve(self, requests: Sequence[Request], answer: Answer) -> None:
        """Sample rows until each has ended (`engine.base.serve`); in the static loop a row's next request joins the batch at once."""
        if self.loop == "dynamic":
            serve_in_rounds(self, requests, answer)
            return
        following = None
        with self._faults(len(requests)):
            turns = self._static().serve([_checked(request) for request in requests], _uniforms)
        while True:
            with self._faults(
                len(requests)
            ):  # not around `answer`, whose faults are not the engine's
                try:
                    row, sample = turns.send(following and _checked(following))
                except StopIteration:
                    return
            following = answer(row, sample)

    @contextmanager
    def _faults(self, rows: int) -> Iterator[None]:
        try:
            yield
        except EngineError:
            raise
        except (
            RuntimeError,
            IndexError,
        ) as error:  # CUDA faults and out-of-memory; on a CPU an id outside the vocabulary is an IndexError
            raise EngineError(f"{self.name} engine failed on {rows} rows: {error}") from error

    def _static(self) -> StaticLoop:
        """The static loop over the model as it is now; training hands over the same model before every batch."""
        if self.static is None or self.static.model is not self.model:
            if not supported(self.model):
                kind = type(base_model(self.model)).__name__
                raise EngineError(
                    f"the {self.loop} loop knows Qwen3 with full attention under plain LoRA or none, not this {kind}; use loop='dynamic'"
                )
            graphs, compiled = self.model.device.type == "cuda", self.loop == "compiled"
            self.static = StaticLoop(
                self.model, self.decoding, self.stop_ids, self.pad_id, self.most, compiled, graphs
            )
        return self.static

    @torch.inference_mode()
    def _dynamic(self, requests: Sequence[Request]) -> list[Sample]:
        device = self.model.device
        budgets = torch.tensor([request.max_tokens for request in requests])
        uniforms = _uniforms(requests, int(budgets.max()))
        ids, mask = self._left_padded(requests)
        positions = (mask.cumsum(-1) - 1).clamp(min=0)
        rows = torch.arange(len(requests))  # rows still running, by request index
        cache = DynamicCache(config=self.model.config)
        cached = {_cache_keyword(base_model(self.model)): cache}
        sampled: list[list[int]] = [[] for _ in requests]
        logprobs: list[list[float]] = [[] for _ in requests]
        finish: list[str] = ["length"] * len(requests)
        step = 0
        while True:
            output = self.model(
                input_ids=ids,
                attention_mask=mask,
                position_ids=positions,
                use_cache=True,
                logits_to_keep=1,
                **cached,
            )
            chosen, scores = choose_tokens(
                output.logits[:, -1],
                self.decoding,
                uniforms[rows, step],
                narrow=device.type == "cuda",
            )
            chosen, scores = chosen.cpu(), scores.cpu()
            if not torch.isfinite(scores).all():
                raise RuntimeError("the model returned logits that are not finite")
            stopped = torch.isin(chosen, self.stop_ids)
            for row, token, score, stop in zip(
                rows.tolist(), chosen.tolist(), scores.tolist(), stopped.tolist(), strict=True
            ):
                sampled[row].append(token)
                logprobs[row].append(round(score, 6))
                if stop:
                    finish[row] = "stop"
            step += 1
            keep = ~stopped & (budgets[rows] > step)
            if not keep.any():
                break
            index = keep.nonzero().squeeze(-1)
            if len(index) < len(rows):
                cache.batch_select_indices(index.to(device))
                mask, positions, chosen, rows = (
                    mask[index.to(device)],
                    positions[index.to(device)],
                    chosen[index],
                    rows[index],
                )
            ids = chosen.unsqueeze(-1).to(device)
            mask = torch.cat([mask, mask.new_ones(len(rows), 1)], dim=-1)
            positions = positions[:, -1:] + 1
        return [Sample(*row) for row in zip(sampled, logprobs, finish, strict=True)]  # type: ignore[arg-type]

    def _left_padded(self, requests: Sequence[Request]) -> tuple[torch.Tensor, torch.Tensor]:
        width = max(len(request.context) for request in requests)
        rows = [[self.pad_id] * (width - len(r.context)) + r.context for r in requests]
        masks = [[0] * (width - len(r.context)) + [1] * len(r.context) for r in requests]
        device = self.model.device
        return torch.tensor(rows, device=device), torch.tensor(masks, device=device)


def _cache_keyword(base: PreTrainedModel) -> str:
    """What this transformers release calls the cache: `past_key_values` up to 5.23 or so, deprecated for `cache` by 5.24."""
    return (
        "cache"
        if "cache" in inspect.signature(type(base).forward).parameters
        else "past_key_values"
    )


def _checked(request: Request) -> Request:
    if request.max_tokens < 1 or not request.context:
        raise EngineError(
            f"row {request.key}: needs a context and room for one token, got {request.max_tokens}"
        )
    return request


def _uniforms(requests: Sequence[Request], width: int) -> torch.Tensor:
    """(rows, width) float64 in [0, 1): row i's numbers depend on `requests[i].key` alone."""
    numbers = torch.zeros(len(requests), width, dtype=torch.float64)
    for row, request in enumerate(requests):
        numbers[row, : request.max_tokens] = torch.from_numpy(
            stream(*request.key).random(request.max_tokens)
        )
    return numbers
