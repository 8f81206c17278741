"""The static decode loop for GPUs: a step of fixed shape, captured once as a CUDA graph and replayed; free slots are refilled at once.

HF's `generate` runs 14 to 38 steps a second on an H200 whatever the batch, because the host launches some two thousand kernels a step. Here
a step is one launch. Layers are compiled one by one, not as one model: 28 layers share one compilation of seconds. Rows come in powers
of two, and each power gets a graph of its own.

Not the engine of a CPU: there the dynamic loop is as fast and its bytes are the demo's evidence.
"""

from collections import deque
from collections.abc import Callable, Generator, Sequence

import torch

from agentrl.engine.static.forward import Forward
from agentrl.engine.static.slots import Slots
from agentrl.rollout.sampler import Request, Sample
from agentrl.rollout.settings import Decoding

LOOK = 8
"""Steps between two looks at which rows have ended: a look stops the GPU for some 50 microseconds, a late look idles a slot."""
MAX_SLOTS = 512
"""Rows at once, where the GPU holds their caches; more requests wait for a free slot."""
SHARE = 0.8
"""Of the free memory that caches may take."""
PAGE = 256
"""Room for tokens is made in pages, so that slightly longer requests find room."""
PREFILL_TOKENS = 16_384
"""Contexts run through the model together up to so many tokens, padding included."""

Uniforms = Callable[[Sequence[Request], int], torch.Tensor]


class StaticLoop:
    """Decodes requests in slots; keeps caches and graphs from call to call.

    Args:
        model: the policy, adapter included; its weights may change in place between calls.
        decoding: sampling settings.
        stop_ids: (ids,).
        pad_id: fills the right of shorter contexts in a prefill; causality hides it.
        slots: rows at once.
        compiled: see `forward.Forward`.
        graphs: capture steps as CUDA graphs; needs a GPU.
    """

    def __init__(
        self, model: torch.nn.Module, decoding: Decoding, stop_ids: torch.Tensor, pad_id: int,
        slots: int = MAX_SLOTS, compiled: bool = True, graphs: bool = True,
    ) -> None:  # fmt: skip
        self.model, self.decoding, self.stop_ids, self.pad_id, self.most = (
            model,
            decoding,
            stop_ids,
            pad_id,
            slots,
        )
        self.forward, self.graphed = Forward(model, compiled), graphs
        self.slots: Slots | None = None
        self.graphs: dict[int, torch.cuda.CUDAGraph] = {}

    @property
    def compiled(self) -> bool:
        """Whether layers run compiled."""
        return self.forward.compiled

    @torch.no_grad()
    def serve(
        self, requests: Sequence[Request], uniforms: Uniforms
    ) -> Generator[tuple[int, Sample], Request | None, None]:
        """Sample rows until each has ended: yields a row's number and its newest sample, and is sent the row's next request or None.

        Raises:
            RuntimeError: the device or the logits failed.
        """
        if not self.forward.refresh():
            self._drop()
        waiting = deque(enumerate(requests))
        holds: dict[int, tuple[int, Request]] = {}  # slot -> row and its request
        steps: dict[int, int] = {}  # slot -> steps since it was filled
        slots = None
        while waiting or holds:
            if slots is None or not holds:
                slots = None  # what is held twice cannot be given back
                slots = self._reserve([request for _, request in waiting])
                rows = min(_power_of_two(len(waiting)), slots.count)
            free = [slot for slot in range(rows) if slot not in holds]
            filled = {}
            while (
                free and waiting and slots.fits(waiting[0][1])
            ):  # one that does not waits until all have ended and there is more room
                filled[free.pop(0)] = waiting.popleft()
            self._fill(slots, {slot: request for slot, (_, request) in filled.items()}, uniforms)
            holds |= filled
            steps |= dict.fromkeys(filled, 0)
            count = min(
                LOOK, max(request.max_tokens - steps[slot] for slot, (_, request) in holds.items())
            )
            if count < 1:
                raise RuntimeError("a row outlived its budget")
            self._advance(slots, rows, count)
            steps = {slot: taken + count for slot, taken in steps.items()}
            for slot, sample in self._ended(slots, rows, holds).items():
                row, _ = holds.pop(slot)
                del steps[slot]
                following = yield row, sample
                if following is not None:
                    waiting.append((row, following))
            if not waiting and holds and rows > 2 and 2 * len(holds) <= rows:
                rows = _power_of_two(len(holds))
                order = sorted(holds)
                slots.gather(order)
                holds = {new: holds[old] for new, old in enumerate(order)}
                steps = {new: steps[old] for new, old in enumerate(order)}

    def _reserve(self, requests: Sequence[Request]) -> Slots:
        """Empty slots that hold these requests: those that are there, or larger ones."""
        count = min(_power_of_two(len(requests)), self.most)
        length = _pages(max(len(request.context) + request.max_tokens for request in requests))
        if self.slots is None or count > self.slots.count or length > self.slots.length:
            if self.slots is not None:
                count, length = max(count, self.slots.count), max(length, self.slots.length)
            self._drop()  # give the memory back before taking more
            self.most = min(self.most, self._room(length))
            self.slots = Slots(
                self.forward.base, self.decoding, self.stop_ids, min(count, self.most), length
            )
        self.slots.active.zero_()
        return self.slots

    def _drop(self) -> None:
        self.graphs.clear()
        self.slots = None

    def _room(self, length: int) -> int:
        """Rows whose caches fit into the free memory, a power of two; two at least, which then fail by themselves."""
        base = self.forward.base
        if base.device.type != "cuda":
            return self.most
        torch.cuda.empty_cache()
        config, free = base.config, torch.cuda.mem_get_info(base.device)[0]
        row = (
            2
            * config.num_hidden_layers
            * config.num_key_value_heads
            * config.head_dim
            * base.dtype.itemsize
            * length
        )
        return 1 << max(1, int(SHARE * free / row).bit_length() - 1)

    def _fill(self, slots: Slots, placed: dict[int, Request], uniforms: Uniforms) -> None:
        """Prefill new rows, in groups of at most `PREFILL_TOKENS`."""
        pending = list(placed)
        while pending:
            size = 1
            while (
                size < len(pending)
                and (size + 1) * max(len(placed[slot].context) for slot in pending[: size + 1])
                <= PREFILL_TOKENS
            ):
                size += 1
            group, pending = pending[:size], pending[size:]
            requests = [placed[slot] for slot in group]
            numbers = uniforms(requests, max(request.max_tokens for request in requests))
            slots.fill(group, requests, numbers, self.forward, self.pad_id)

    def _advance(self, slots: Slots, rows: int, count: int) -> None:
        if not self.graphed:
            for _ in range(count):
                slots.step(rows, self.forward)
            return
        if rows not in self.graphs:
            self.graphs[rows] = self._capture(slots, rows)
        for _ in range(count):
            self.graphs[rows].replay()

    def _capture(self, slots: Slots, rows: int) -> torch.cuda.CUDAGraph:
        """One step as a graph. It is run before for compilation and workspaces, with every row at rest, so that no row advances."""
        active = slots.active.clone()
        slots.active.zero_()
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(2):
                slots.step(rows, self.forward)
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        pool = next(iter(self.graphs.values())).pool() if self.graphs else None
        with torch.cuda.graph(graph, pool=pool):
            slots.step(rows, self.forward)
        slots.active.copy_(active)
        return graph

    def _ended(
        self, slots: Slots, rows: int, holds: dict[int, tuple[int, Request]]
    ) -> dict[int, Sample]:
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
        for slot, count, ids, scores in zip(
            ended, counts, slots.ids[at].tolist(), slots.logprobs[at].tolist(), strict=True
        ):
            logprobs = [round(score, 6) for score in scores[:count]]
            found[slot] = Sample(
                ids[:count], logprobs, "stop" if ids[count - 1] in stops else "length"
            )
        return found


def _power_of_two(count: int) -> int:
    """At least two: PyTorch compiles anew for one row."""
    return 1 << max(1, (count - 1).bit_length())


def _pages(tokens: int) -> int:
    return -(-tokens // PAGE) * PAGE
