"""The portable engine: batched decoding with a transformers model, on any device.

The decode loop is ours rather than `generate`'s because three things must hold at once: every row draws from its own random stream,
every row has its own budget, and a finished row leaves the batch at once.
"""

from collections.abc import Collection, Sequence
from typing import Any

import torch
import transformers
from transformers import DynamicCache, PreTrainedModel

from agentrl.config import Decoding
from agentrl.engine.base import EngineError, Request, Sample
from agentrl.engine.sampling import choose
from agentrl.seeding import stream


class TransformersEngine:
    """Samples from `model` as it is now: during training that is the current policy, adapter included.

    Args:
        model: a causal language model; its mode and device are the caller's business.
        decoding: sampling settings, the same for every row.
        stop_ids: ids that end a row; the stop id itself is part of the sample.
        pad_id: fills the left of shorter contexts, masked out.
    """

    name = "transformers"

    def __init__(self, model: PreTrainedModel, decoding: Decoding, stop_ids: Collection[int], pad_id: int) -> None:
        self.model, self.decoding, self.pad_id = model, decoding, pad_id
        self.stop_ids = torch.tensor(sorted(stop_ids))

    def describe(self) -> dict[str, Any]:
        """Engine, versions, dtype and device."""
        versions = {"transformers": transformers.__version__, "torch": torch.__version__}
        return {"engine": self.name, "dtype": str(self.model.dtype), "device": str(self.model.device), **versions}

    @torch.inference_mode()
    def generate(self, requests: Sequence[Request]) -> list[Sample]:
        """Sample every request as one batch."""
        if not requests:
            return []
        for request in requests:
            if request.max_tokens < 1 or not request.context:
                raise EngineError(f"row {request.key}: needs a context and room for one token, got {request.max_tokens}")
        try:
            return self._decode(requests)
        except (RuntimeError, IndexError) as error:  # CUDA faults and out-of-memory; on a CPU an id outside the vocabulary is an IndexError
            raise EngineError(f"{self.name} engine failed on {len(requests)} rows: {error}") from error

    def _decode(self, requests: Sequence[Request]) -> list[Sample]:
        device = self.model.device
        budgets = torch.tensor([request.max_tokens for request in requests])
        uniforms = _uniforms(requests, int(budgets.max()))
        ids, mask = self._left_padded(requests)
        positions = (mask.cumsum(-1) - 1).clamp(min=0)
        rows = torch.arange(len(requests))  # rows still running, by request index
        cache = DynamicCache(config=self.model.config)
        sampled: list[list[int]] = [[] for _ in requests]
        logprobs: list[list[float]] = [[] for _ in requests]
        finish: list[str] = ["length"] * len(requests)
        step = 0
        while True:
            output = self.model(
                input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True, logits_to_keep=1
            )
            chosen, scores = choose(output.logits[:, -1], self.decoding, uniforms[rows, step])
            chosen, scores = chosen.cpu(), scores.cpu()
            if not torch.isfinite(scores).all():
                raise RuntimeError("the model returned logits that are not finite")
            stopped = torch.isin(chosen, self.stop_ids)
            for row, token, score, stop in zip(rows.tolist(), chosen.tolist(), scores.tolist(), stopped.tolist(), strict=True):
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
                mask, positions, chosen, rows = mask[index.to(device)], positions[index.to(device)], chosen[index], rows[index]
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


def _uniforms(requests: Sequence[Request], width: int) -> torch.Tensor:
    """(rows, width) float64 in [0, 1): row i's numbers depend on `requests[i].key` alone."""
    numbers = torch.zeros(len(requests), width, dtype=torch.float64)
    for row, request in enumerate(requests):
        numbers[row, : request.max_tokens] = torch.from_numpy(stream(*request.key).random(request.max_tokens))
    return numbers
