"""The device side of the static loop: fixed tensors for keys, values and every row's progress, and the step that advances them.

A slot holds one row: its key-value cache, its random numbers, its budget, what it has sampled. Everything lies at a fixed address and
has a fixed shape, so that a step can be captured once as a CUDA graph and replayed; the host only looks now and then which rows ended.
"""

from collections.abc import Callable, Sequence

import torch
from transformers import PreTrainedModel

from agentrl.config import Decoding
from agentrl.engine.base import Request
from agentrl.engine.forward import Step
from agentrl.engine.sampling import choose

LayerStep = Callable[[torch.nn.Module, torch.Tensor, torch.Tensor, torch.Tensor, Step], torch.Tensor]


class Slots:
    """Room for `count` rows of at most `length` cached tokens and `budget` sampled ones.

    Args:
        base: the model beneath any adapter.
        decoding: sampling settings.
        stop_ids: (ids,) on any device.
        count: rows.
        length: tokens a row can cache.
        budget: tokens a row can sample.
    """

    def __init__(self, base: PreTrainedModel, decoding: Decoding, stop_ids: torch.Tensor, count: int, length: int, budget: int) -> None:
        self.base, self.decoding, self.count, self.length, self.budget = base, decoding, count, length, budget
        device, config = base.device, base.config
        self.stop_ids = stop_ids.to(device)
        shape = (count, config.num_key_value_heads, length, config.head_dim)
        self.keys = [torch.zeros(shape, dtype=base.dtype, device=device) for _ in range(config.num_hidden_layers)]
        self.values = [torch.zeros(shape, dtype=base.dtype, device=device) for _ in range(config.num_hidden_layers)]
        whole = {"dtype": torch.int64, "device": device}
        self.last = torch.zeros(count, **whole)  # the id each row is to read next
        self.positions = torch.zeros(count, **whole)  # where that id stands
        self.sampled = torch.zeros(count, **whole)  # ids sampled so far
        self.budgets = torch.zeros(count, **whole)
        self.active = torch.zeros(count, dtype=torch.bool, device=device)
        self.broken = torch.zeros((), dtype=torch.bool, device=device)
        # One column more than the budget: a row that has ended goes on writing behind its last id.
        self.ids = torch.zeros(count, budget + 1, **whole)
        self.logprobs = torch.zeros(count, budget + 1, dtype=torch.float32, device=device)
        self.uniforms = torch.zeros(count, budget + 1, dtype=torch.float64, device=device)

    def fill(self, rows: Sequence[int], requests: Sequence[Request], uniforms: torch.Tensor, prefill: "Prefill") -> None:
        """Put new requests into free slots: cache their contexts but the last id, which the next step reads.

        Args:
            rows: the slots.
            requests: one per slot.
            uniforms: (requests, any width up to `budget`) float64.
            prefill: runs contexts through the model and yields their keys and values per layer.
        """
        device = self.last.device
        at = torch.tensor(rows, device=device)
        contexts = [request.context for request in requests]
        for layer, (keys, values) in enumerate(prefill([context[:-1] for context in contexts])):
            self.keys[layer][at, :, : keys.shape[2]] = keys
            self.values[layer][at, :, : values.shape[2]] = values
        self.last[at] = torch.tensor([context[-1] for context in contexts], device=device)
        self.positions[at] = torch.tensor([len(context) - 1 for context in contexts], device=device)
        self.budgets[at] = torch.tensor([request.max_tokens for request in requests], device=device)
        self.uniforms[at, : uniforms.shape[1]] = uniforms.to(device)
        self.sampled[at] = 0
        self.active[at] = True

    def step(self, rows: int, width: int, layer_step: LayerStep) -> None:
        """Sample one id for each of the first `rows` slots; slots that have ended stay as they are.

        Args:
            rows: how many slots take part.
            width: cached tokens that are looked at, above every active position.
            layer_step: `forward.layer_step`, compiled or not.
        """
        decoder, positions = self.base.model, self.positions[:rows]
        hidden = decoder.embed_tokens(self.last[:rows].unsqueeze(-1))
        cos, sin = decoder.rotary_emb(hidden, positions.unsqueeze(-1))
        seen = torch.arange(width, device=positions.device) <= positions.view(-1, 1, 1, 1)
        step = Step(cos, sin, positions, seen)
        for layer, keys, values in zip(decoder.layers, self.keys, self.values, strict=True):
            hidden = layer_step(layer, hidden, keys[:rows], values[:rows], step)
        self._advance(rows, self.base.lm_head(decoder.norm(hidden[:, -1])))

    def _advance(self, rows: int, logits: torch.Tensor) -> None:
        index = torch.arange(rows, device=logits.device)
        sampled, active = self.sampled[:rows], self.active[:rows]
        chosen, scores = choose(logits, self.decoding, self.uniforms[index, sampled], narrow=True)
        self.ids[index, sampled] = chosen
        self.logprobs[index, sampled] = scores
        self.broken |= (active & ~scores.isfinite()).any()
        sampled += active
        goes_on = active & ~(chosen.unsqueeze(-1) == self.stop_ids).any(-1) & (sampled < self.budgets[:rows])
        self.last[:rows] = torch.where(goes_on, chosen, self.last[:rows])
        self.positions[:rows] += goes_on
        active.copy_(goes_on)

    def gather(self, rows: Sequence[int]) -> None:
        """Move these slots to the front, in order: fewer rows then take part in a step."""
        at = torch.tensor(rows, device=self.last.device)
        progress = (self.last, self.positions, self.sampled, self.budgets, self.active, self.ids, self.logprobs, self.uniforms)
        for tensor in (*self.keys, *self.values, *progress):
            tensor[: len(rows)] = tensor[at]
        self.active[len(rows) :] = False


Prefill = Callable[[Sequence[Sequence[int]]], Sequence[tuple[torch.Tensor, torch.Tensor]]]
"""Contexts in; per layer keys and values (contexts, key-value heads, longest context, head_dim)."""
