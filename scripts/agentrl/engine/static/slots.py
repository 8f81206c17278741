"""The device side of the static loop: fixed tensors for keys, values and every row's progress, and the step that advances them.

A slot holds one row: its key-value cache, its random numbers, its budget, what it has sampled. Everything lies at a fixed address and
has a fixed shape, so that a step can be captured once as a CUDA graph and replayed; the host only looks now and then which rows ended.
"""

from collections.abc import Sequence

import torch
from transformers import PreTrainedModel

from agentrl.engine.static.forward import Cache, Forward
from agentrl.rollout.sampler import Request
from agentrl.rollout.settings import Decoding


class Slots:
    """Room for `count` rows of at most `length` tokens each.

    Args:
        base: the model beneath any adapter.
        decoding: sampling settings.
        stop_ids: (ids,) on any device.
        count: rows.
        length: tokens of a row, context and sampled.
    """

    def __init__(
        self,
        base: PreTrainedModel,
        decoding: Decoding,
        stop_ids: torch.Tensor,
        count: int,
        length: int,
    ) -> None:
        self.decoding, self.count, self.length = decoding, count, length
        device, config = base.device, base.config
        self.stop_ids = stop_ids.to(device)
        shape = (count, config.num_key_value_heads, length, config.head_dim)
        layers = range(config.num_hidden_layers)
        self.cache = Cache(
            *(
                [torch.zeros(shape, dtype=base.dtype, device=device) for _ in layers]
                for _ in Cache._fields
            )
        )
        whole = {"dtype": torch.int64, "device": device}
        self.last = torch.zeros(count, **whole)  # the id each row is to read next
        self.positions = torch.zeros(count, **whole)  # where that id stands
        self.sampled = torch.zeros(count, **whole)  # ids sampled so far
        self.budgets = torch.zeros(count, **whole)
        self.active = torch.zeros(count, dtype=torch.bool, device=device)
        self.broken = torch.zeros((), dtype=torch.bool, device=device)
        # One column more than the length: a row that has ended goes on writing behind its last id.
        self.ids = torch.zeros(count, length + 1, **whole)
        self.logprobs = torch.zeros(count, length + 1, dtype=torch.float32, device=device)
        self.uniforms = torch.zeros(count, length + 1, dtype=torch.float64, device=device)

    def fits(self, request: Request) -> bool:
        """Whether a row has room for it."""
        return len(request.context) + request.max_tokens <= self.length

    def fill(
        self,
        rows: Sequence[int],
        requests: Sequence[Request],
        uniforms: torch.Tensor,
        forward: Forward,
        pad_id: int,
    ) -> None:
        """Put new requests into free slots: cache their contexts but the last id, which the next step reads.

        Args:
            rows: the slots.
            requests: one per slot.
            uniforms: (requests, any width up to `length`) float64.
            forward: the model.
            pad_id: fills shorter contexts.
        """
        device = self.last.device
        at = torch.tensor(rows, device=device)
        contexts = [request.context for request in requests]
        width = max(len(context) for context in contexts) - 1
        if width:
            ids = [[*context[:-1], *[pad_id] * (width + 1 - len(context))] for context in contexts]
            forward.prefill(torch.tensor(ids, device=device), at, self.cache)
        self.last[at] = torch.tensor([context[-1] for context in contexts], device=device)
        self.positions[at] = torch.tensor([len(context) - 1 for context in contexts], device=device)
        self.budgets[at] = torch.tensor([request.max_tokens for request in requests], device=device)
        self.uniforms[at, : uniforms.shape[1]] = uniforms.to(device)
        self.sampled[at] = 0
        self.active[at] = True

    def step(self, rows: int, forward: Forward) -> None:
        """Sample one id for each of the first `rows` slots; slots that have ended stay as they are."""
        index = torch.arange(rows, device=self.last.device)
        logits = forward.decode(self.last[:rows], self.positions[:rows], self.cache)
        sampled, active = self.sampled[:rows], self.active[:rows]
        chosen, scores = forward.choose(
            logits, self.decoding, self.uniforms[index, sampled], narrow=True
        )
        self.ids[index, sampled] = chosen
        self.logprobs[index, sampled] = scores
        self.broken |= (active & ~scores.isfinite()).any()
        sampled += active
        goes_on = (
            active
            & ~(chosen.unsqueeze(-1) == self.stop_ids).any(-1)
            & (sampled < self.budgets[:rows])
        )
        self.last[:rows] = torch.where(goes_on, chosen, self.last[:rows])
        self.positions[:rows] += goes_on
        active.copy_(goes_on)

    def gather(self, rows: Sequence[int]) -> None:
        """Move these slots to the front, in order: fewer rows then take part in a step."""
        at = torch.tensor(rows, device=self.last.device)
        progress = (
            self.last,
            self.positions,
            self.sampled,
            self.budgets,
            self.active,
            self.ids,
            self.logprobs,
            self.uniforms,
        )
        for tensor in (*self.cache.keys, *self.cache.values, *progress):
            tensor[: len(rows)] = tensor[at]
        self.active[len(rows) :] = False
