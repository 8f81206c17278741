"""The static decode loop for GPUs: a step of fixed shape, captured once as a CUDA graph and replayed; free slots are refilled at once.

HF's `generate` runs 14 steps a second on an H200 whatever the batch, because the host launches some two thousand kernels a step. Here
a step is one launch. Layers are compiled one by one, not as one model: 28 layers share one compilation of seconds. Shapes are bucketed
(rows to powers of two, cached tokens to pages), and each pair gets a graph of its own.

Not the engine of a CPU: there the dynamic loop is as fast and its bytes are the demo's evidence.
"""

import logging
from collections import deque
from collections.abc import Callable, Sequence

import torch
from torch._dynamo.exc import TorchDynamoException
from transformers import DynamicCache

from agentrl.config import Decoding
from agentrl.engine.base import Request, Sample
from agentrl.engine.forward import base_model, cache_keyword, layer_step
from agentrl.engine.slots import LayerStep, Slots

_log = logging.getLogger(__name__)
LOOK = 8
"""Steps between two looks at which rows have ended: a look stops the GPU for some 50 microseconds, a late look idles a slot."""
MAX_SLOTS = 128
"""Rows at once; at 1,536 cached tokens of Qwen3-1.7B they take 22 GB. More requests wait for a free slot."""
PAGE = 256
"""Attention reads whole pages of the cache: the fewer widths, the fewer graphs."""
PREFILL_TOKENS = 16_384
"""Contexts run through the model together up to so many tokens, padding included."""
RECOMPILATIONS = 64
"""Dynamo's default of 8 would fall back to uncompiled layers without a word."""

Uniforms = Callable[[Sequence[Request], int], torch.Tensor]


class StaticLoop:
    """Decodes requests in slots; keeps caches and graphs from call to call.

    Args:
        model: the policy, adapter included; its weights may change in place between calls.
        decoding: sampling settings.
        stop_ids: (ids,).
        pad_id: fills the right of shorter contexts in a prefill; causality hides it.
        slots: rows at once.
        compiled: compile layers; where the toolchain is missing, a warning says so and they run uncompiled.
        graphs: capture steps as CUDA graphs; needs a GPU.
    """

    def __init__(
        self, model: torch.nn.Module, decoding: Decoding, stop_ids: torch.Tensor, pad_id: int,
        slots: int = MAX_SLOTS, compiled: bool = True, graphs: bool = True,
    ) -> None:  # fmt: skip
        self.model, self.decoding, self.stop_ids, self.pad_id, self.most = model, decoding, stop_ids, pad_id, slots
        self.compiled, self.graphed = compiled, graphs
        self.layer_step: LayerStep = torch.compile(layer_step) if compiled else layer_step
        self.slots: Slots | None = None
        self.graphs: dict[tuple[int, int], torch.cuda.CUDAGraph] = {}
        self.addresses: tuple[int, ...] = ()

    @torch.no_grad()
    def run(self, requests: Sequence[Request], uniforms: Uniforms) -> list[Sample]:
        """Sample every request; results in request order. Raises RuntimeError where the device or the logits fail."""
        slots = self._reserve(requests)
        waiting = deque(range(len(requests)))
        rows = min(_power_of_two(len(requests)), self.most)
        holds: dict[int, int] = {}  # slot -> request
        steps: dict[int, int] = {}  # slot -> steps since it was filled
        samples: list[Sample | None] = [None] * len(requests)
        while waiting or holds:
            free = [slot for slot in range(rows) if slot not in holds]
            filled = {slot: waiting.popleft() for slot in free[: len(waiting)]}
            self._fill(slots, {slot: requests[index] for slot, index in filled.items()}, uniforms)
            holds |= filled
            steps |= dict.fromkeys(filled, 0)
            count = min(LOOK, max(requests[index].max_tokens - steps[slot] for slot, index in holds.items()))
            if count < 1:
                raise RuntimeError("a row outlived its budget")
            highest = max(len(requests[index].context) + steps[slot] for slot, index in holds.items()) + count - 1
            self._advance(rows, min(_pages(highest), slots.length), count)
            steps = {slot: taken + count for slot, taken in steps.items()}
            for slot, sample in self._ended(slots, rows, holds).items():
                samples[holds.pop(slot)] = sample
                del steps[slot]
            if not waiting and holds and 2 * len(holds) <= rows:
                rows = _power_of_two(len(holds))
                order = sorted(holds)
                slots.gather(order)
                holds = {new: holds[old] for new, old in enumerate(order)}
                steps = {new: steps[old] for new, old in enumerate(order)}
        return [sample for sample in samples if sample is not None]

    def _reserve(self, requests: Sequence[Request]) -> Slots:
        """Slots that hold these requests, in this model's memory: grown when needed; graphs of other addresses are dropped."""
        count = min(_power_of_two(len(requests)), self.most)
        length = _pages(max(len(request.context) + request.max_tokens for request in requests))
        budget = max(request.max_tokens for request in requests)
        addresses = tuple(parameter.data_ptr() for parameter in self.model.parameters())
        old = self.slots
        if old is None or addresses != self.addresses or count > old.count or length > old.length or budget > old.budget:
            if old is not None and addresses == self.addresses:
                count, length, budget = max(count, old.count), max(length, old.length), max(budget, old.budget)
            self.graphs.clear()
            self.slots = old = None  # give the memory back before taking more
            self.slots = Slots(base_model(self.model), self.decoding, self.stop_ids, count, length, budget)
            self.addresses = addresses
        self.slots.active.zero_()
        return self.slots

    def _fill(self, slots: Slots, placed: dict[int, Request], uniforms: Uniforms) -> None:
        """Prefill new rows, in groups of at most `PREFILL_TOKENS`."""
        pending = list(placed)
        while pending:
            size = 1
            while size < len(pending) and (size + 1) * max(len(placed[slot].context) for slot in pending[: size + 1]) <= PREFILL_TOKENS:
                size += 1
            group, pending = pending[:size], pending[size:]
            requests = [placed[slot] for slot in group]
            slots.fill(group, requests, uniforms(requests, max(request.max_tokens for request in requests)), self._prefill)

    def _prefill(self, contexts: Sequence[Sequence[int]]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Keys and values of each layer from transformers' own forward: contexts right-padded, so that plain causality suffices."""
        width = max(len(context) for context in contexts)
        if width == 0:
            return []
        base = base_model(self.model)
        ids = torch.tensor([[*context, *[self.pad_id] * (width - len(context))] for context in contexts], device=base.device)
        cache = DynamicCache(config=base.config)
        base.model(input_ids=ids, use_cache=True, **{cache_keyword(base): cache})
        return [(layer.keys, layer.values) for layer in cache.layers]

    def _advance(self, rows: int, width: int, count: int) -> None:
        if not self.graphed:
            for _ in range(count):
                self._step(rows, width)
            return
        if (rows, width) not in self.graphs:
            self.graphs[rows, width] = self._capture(rows, width)
        for _ in range(count):
            self.graphs[rows, width].replay()

    def _step(self, rows: int, width: int) -> None:
        slots = self.slots
        if slots is None:
            raise RuntimeError("no slots are reserved")
        if not self.compiled:
            slots.step(rows, width, self.layer_step)
            return
        try:
            with torch.compiler.config.patch(recompile_limit=RECOMPILATIONS):
                slots.step(rows, width, self.layer_step)
        except TorchDynamoException as error:
            _log.warning("layers cannot be compiled here and run uncompiled, more slowly: %s", str(error).strip().splitlines()[0])
            self.compiled, self.layer_step = False, layer_step
            slots.step(rows, width, self.layer_step)

    def _capture(self, rows: int, width: int) -> torch.cuda.CUDAGraph:
        """One step as a graph. It is run before for compilation and workspaces, with every row at rest, so that no row advances."""
        slots = self.slots
        if slots is None:
            raise RuntimeError("no slots are reserved")
        active = slots.active.clone()
        slots.active.zero_()
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(2):
                self._step(rows, width)
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        pool = next(iter(self.graphs.values())).pool() if self.graphs else None
        with torch.cuda.graph(graph, pool=pool):
            self._step(rows, width)
        slots.active.copy_(active)
        return graph

    def _ended(self, slots: Slots, rows: int, holds: dict[int, int]) -> dict[int, Sample]:
        """What the rows that ended since the last look have sampled."""
        if slots.broken:
            slots.broken.zero_()
            raise RuntimeError("the model returned logits that are not finite")
        active = slots.active[:rows].tolist()
        ended = [slot for slot in holds if not active[slot]]
        if not ended:
            return {}
        at = torch.tensor(ended, device=slots.ids.device)
        counts, stops = slots.sampled[at].tolist(), set(slots.stop_ids.tolist())
        found = {}
        for slot, count, ids, scores in zip(ended, counts, slots.ids[at].tolist(), slots.logprobs[at].tolist(), strict=True):
            logprobs = [round(score, 6) for score in scores[:count]]
            found[slot] = Sample(ids[:count], logprobs, "stop" if ids[count - 1] in stops else "length")
        return found


def _power_of_two(count: int) -> int:
    return 1 << (count - 1).bit_length()


def _pages(tokens: int) -> int:
    return -(-tokens // PAGE) * PAGE
