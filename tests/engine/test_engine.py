"""Engines: a row's ids depend on its context, its budget and its key, never on its neighbours."""

import copy
import shutil
from collections.abc import Sequence
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch
from peft import IA3Config, LoraConfig, get_peft_model
from scipy import stats
from torch._dynamo.exc import InternalTorchDynamoError
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MinPLogitsWarper,
    PreTrainedModel,
    Qwen3ForCausalLM,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from agentrl.engine.sampling import CHUNK, candidates, choose_tokens, truncate
from agentrl.engine.scripted import ScriptedEngine
from agentrl.engine.static import loop as static_loop
from agentrl.engine.static.forward import Cache, Forward
from agentrl.engine.static.loop import StaticLoop
from agentrl.engine.static.products import supported
from agentrl.engine.static.slots import Slots
from agentrl.engine.transformers import Loop, TransformersEngine
from agentrl.rollout.sampler import EngineError, Request, Sample, serve
from agentrl.rollout.seeding import stream
from agentrl.rollout.settings import Decoding

PILOT = Decoding(temperature=0.6, top_p=0.95, top_k=20, min_p=0.0, seed=42)
FREE = Decoding(temperature=1.3, top_p=1.0, top_k=0, min_p=0.0, seed=42)
GREEDY = Decoding(temperature=0.0, top_p=0.95, top_k=20, min_p=0.0, seed=42)
STOPS = range(0, 1500, 12)
"""One id in twelve ends a row, so that rows of a batch end at different times."""


@pytest.fixture(scope="module")
def start_model() -> Qwen3ForCausalLM:
    """The committed start policy, which samples real turns."""
    return AutoModelForCausalLM.from_pretrained(
        Path(__file__).parents[1] / "data/start", use_safetensors=True
    ).eval()


def requests(count: int = 8, budget: int = 25) -> list[Request]:
    """Rows of very different context lengths and budgets."""
    rng = Random(0)
    lengths = [1, 40, 3, 17, 40, 2, 9, 28][:count]
    return [
        Request(
            [rng.randrange(1500) for _ in range(length)],
            budget - 2 * i,
            ("episode", 42, 0, f"dev-{i:04d}", 0, 0),
        )
        for i, length in enumerate(lengths)
    ]


LOOPS = pytest.mark.parametrize("loop", ["dynamic", "graphed"])
"""On a CPU `graphed` is the static loop, every step run as it is."""
DECODINGS = pytest.mark.parametrize(
    "decoding", [PILOT, FREE, GREEDY], ids=["pilot", "free", "greedy"]
)


def engine(
    model: PreTrainedModel,
    decoding: Decoding = PILOT,
    stops: Sequence[int] = STOPS,
    loop: Loop = "auto",
    slots: int = 128,
) -> TransformersEngine:
    return TransformersEngine(model, decoding, stops, 0, loop, slots)


@LOOPS
@DECODINGS
def test_a_row_is_the_same_alone_and_in_any_batch(
    tiny_model: Qwen3ForCausalLM, decoding: Decoding, loop: Loop
) -> None:
    rows = requests()
    together = engine(tiny_model, decoding, loop=loop).generate(rows)
    alone = [engine(tiny_model, decoding, loop=loop).generate([row])[0] for row in rows]
    reversed_ = engine(tiny_model, decoding, loop=loop).generate(rows[::-1])[::-1]
    for a, b, c in zip(together, alone, reversed_, strict=True):
        assert a.ids == b.ids == c.ids
        assert a.finish == b.finish == c.finish
        assert a.logprobs == pytest.approx(b.logprobs, abs=1e-4)


@LOOPS
def test_rows_end_by_stop_or_by_their_own_budget(tiny_model: Qwen3ForCausalLM, loop: Loop) -> None:
    rows = requests()
    samples = engine(tiny_model, FREE, STOPS[::3], loop).generate(rows)
    assert {sample.finish for sample in samples} == {"stop", "length"}
    assert len({len(sample.ids) for sample in samples}) > 3
    for row, sample in zip(rows, samples, strict=True):
        assert len(sample.ids) == len(sample.logprobs)
        assert not set(sample.ids[:-1]) & set(STOPS[::3])
        assert (sample.ids[-1] in STOPS[::3]) == (sample.finish == "stop")
        assert len(sample.ids) == row.max_tokens or (
            sample.finish == "stop" and len(sample.ids) < row.max_tokens
        )


@LOOPS
def test_budgets_are_exact_without_a_stop(tiny_model: Qwen3ForCausalLM, loop: Loop) -> None:
    rows = requests()
    samples = engine(tiny_model, stops=[1499 + 10], loop=loop).generate(rows)
    assert [(len(sample.ids), sample.finish) for sample in samples] == [
        (row.max_tokens, "length") for row in rows
    ]


@LOOPS
def test_a_smaller_budget_only_cuts(tiny_model: Qwen3ForCausalLM, loop: Loop) -> None:
    row = requests(1)[0]
    whole = engine(tiny_model, stops=[1509], loop=loop).generate([row])[0]
    for budget in (1, 2, 11):
        cut = engine(tiny_model, stops=[1509], loop=loop).generate(
            [Request(row.context, budget, row.key)]
        )[0]
        assert cut.ids == whole.ids[:budget]


def test_finished_rows_leave_at_once(tiny_model: Qwen3ForCausalLM) -> None:
    """Every forward pass works on exactly the rows that still run."""
    shapes: list[tuple[int, int]] = []
    hook = tiny_model.register_forward_pre_hook(
        lambda _, __, kwargs: shapes.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    try:
        samples = engine(tiny_model, FREE).generate(requests())
    finally:
        hook.remove()
    lengths = [len(sample.ids) for sample in samples]
    assert [rows for rows, _ in shapes] == [
        sum(length > step for length in lengths) for step in range(max(lengths))
    ]
    assert [width for _, width in shapes] == [40] + [1] * (max(lengths) - 1)


def test_same_key_same_ids_and_other_key_other_ids(tiny_model: Qwen3ForCausalLM) -> None:
    row = requests(1)[0]
    others = [
        Request(row.context, row.max_tokens, (*row.key[:-2], trial, turn))
        for trial, turn in ((0, 0), (1, 0), (0, 1))
    ]
    first, *rest = engine(tiny_model, FREE, stops=[1509]).generate([row, *others])
    assert first.ids == rest[0].ids
    assert len({tuple(sample.ids) for sample in rest}) == 3


@LOOPS
@DECODINGS
def test_logprobs_are_those_of_a_teacher_forced_pass(
    tiny_model: Qwen3ForCausalLM, decoding: Decoding, loop: Loop
) -> None:
    rows = requests()
    for row, sample in zip(
        rows, engine(tiny_model, decoding, loop=loop).generate(rows), strict=True
    ):
        with torch.inference_mode():
            logits = tiny_model(torch.tensor([row.context + sample.ids])).logits[
                0, len(row.context) - 1 : -1
            ]
        expected = (logits / (decoding.temperature or 1.0)).log_softmax(-1)[
            range(len(sample.ids)), sample.ids
        ]
        assert sample.logprobs == pytest.approx(expected.tolist(), abs=1e-4)


@LOOPS
def test_greedy_is_argmax(tiny_model: Qwen3ForCausalLM, loop: Loop) -> None:
    row = requests(2)[1]
    sample = engine(tiny_model, GREEDY, [1509], loop).generate([row])[0]
    with torch.inference_mode():
        logits = tiny_model(torch.tensor([row.context + sample.ids])).logits[
            0, len(row.context) - 1 : -1
        ]
    assert sample.ids == logits.argmax(-1).tolist()


@LOOPS
def test_no_rows_no_samples(tiny_model: Qwen3ForCausalLM, loop: Loop) -> None:
    assert engine(tiny_model, loop=loop).generate([]) == []


@LOOPS
@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (
            Request([1, 2], 0, ("row",)),
            r"\('row',\): needs a context and room for one token, got 0",
        ),
        (Request([1, 2], -3, ("row",)), "got -3"),
        (Request([], 5, ("row",)), "needs a context"),
        (Request([1, 1_000_000], 5, ("row",)), "engine failed on 2 rows: index out of range"),
    ],
)
def test_impossible_rows_are_engine_errors(
    tiny_model: Qwen3ForCausalLM, bad: Request, message: str, loop: Loop
) -> None:
    with pytest.raises(EngineError, match=message):
        engine(tiny_model, loop=loop).generate([*requests(1), bad])


@LOOPS
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@DECODINGS
def test_logits_that_are_not_finite_are_engine_errors(
    tiny_model: Qwen3ForCausalLM, value: float, decoding: Decoding, loop: Loop
) -> None:
    broken = copy.deepcopy(tiny_model)
    with torch.no_grad():
        broken.lm_head.weight.fill_(value)
    with pytest.raises(EngineError, match="not finite"):
        engine(broken, decoding, loop=loop).generate(requests(2))


@DECODINGS
@pytest.mark.parametrize("slots", [1, 2, 4, 128])
def test_static_and_dynamic_loop_sample_the_same(
    start_model: Qwen3ForCausalLM, decoding: Decoding, slots: int
) -> None:
    """More requests than slots, so that rows enter at different times beside different neighbours."""
    rows = requests()
    dynamic = engine(start_model, decoding).generate(rows)
    forward = engine(start_model, decoding, loop="graphed", slots=slots).generate(rows)
    backward = engine(start_model, decoding, loop="graphed", slots=slots).generate(rows[::-1])[::-1]
    for a, b, c in zip(dynamic, forward, backward, strict=True):
        assert a.ids == b.ids == c.ids
        assert a.finish == b.finish == c.finish
        assert b.logprobs == pytest.approx(a.logprobs, abs=1e-4)


def test_static_loop_refills_slots_and_shrinks_at_the_end(
    tiny_model: Qwen3ForCausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[tuple[int, int]] = []
    original = Slots.step

    def step(self: Slots, rows: int, forward: Forward) -> None:
        steps.append((rows, int(self.active.sum())))
        original(self, rows, forward)

    monkeypatch.setattr(Slots, "step", step)
    rows = [
        Request([7] * 5, budget, ("row", i)) for i, budget in enumerate([8, 8, 8, 8, 8, 40, 300, 8])
    ]
    samples = engine(tiny_model, stops=[1509], loop="graphed", slots=4).generate(rows)
    assert [len(sample.ids) for sample in samples] == [row.max_tokens for row in rows]
    assert steps[:16] == [(4, 4)] * 16  # 8 ended after 8 steps, 8 more took their places
    assert steps[16:48] == [(2, 2)] * 32
    assert steps[48:] == [(2, 1)] * 260


@LOOPS
@pytest.mark.parametrize("slots", [2, 8])
def test_rows_go_on_with_their_next_turns(
    start_model: Qwen3ForCausalLM, loop: Loop, slots: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Turns as `generate` gives them one by one, though rows have different numbers of turns, and later ones need more room."""
    monkeypatch.setattr(static_loop, "PAGE", 32)

    def following(turn: int, request: Request, sample: Sample) -> Request | None:
        row = request.key[-2]
        if turn == row % 4:
            return None
        return Request(
            [*request.context, *sample.ids, 7, 8, 9],
            request.max_tokens + 20 * turn,
            (*request.key[:-1], turn + 1),
        )

    first = [
        Request(request.context, 12, ("episode", row, 0)) for row, request in enumerate(requests())
    ]
    expected: dict[int, list[Sample]] = {}
    for row, opening in enumerate(first):
        request, expected[row] = opening, []
        while request is not None:
            expected[row].append(engine(start_model).generate([request])[0])
            request = following(len(expected[row]) - 1, request, expected[row][-1])
    running, found = dict(enumerate(first)), {row: [] for row in range(len(first))}

    def answer(row: int, sample: Sample) -> Request | None:
        found[row].append(sample)
        following_request = following(len(found[row]) - 1, running[row], sample)
        if following_request is not None:
            running[row] = following_request
        return following_request

    serve(engine(start_model, loop=loop, slots=slots), first, answer)
    assert {row: [sample.ids for sample in turns] for row, turns in found.items()} == {
        row: [sample.ids for sample in turns] for row, turns in expected.items()
    }
    assert {len(turns) for turns in found.values()} == {1, 2, 3, 4}


def test_static_loop_holds_no_more_rows_than_memory_allows(
    tiny_model: Qwen3ForCausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StaticLoop, "_room", lambda _self, _length: 4)
    rows = requests()
    limited = engine(tiny_model, loop="graphed")
    assert [sample.ids for sample in limited.generate(rows)] == [
        sample.ids for sample in engine(tiny_model, loop="graphed").generate(rows)
    ]
    held = limited.static.slots
    assert held.count == 4
    limited.generate(rows)
    assert limited.static.slots is held


def test_a_bad_next_turn_is_an_engine_error(tiny_model: Qwen3ForCausalLM) -> None:
    for loop in ("dynamic", "graphed"):
        with pytest.raises(EngineError, match="needs a context and room for one token, got 0"):
            serve(
                engine(tiny_model, loop=loop),
                requests(2),
                lambda row, _: Request([1], 0, ("row", row)),
            )


@LOOPS
def test_a_fault_of_whoever_asks_is_not_the_engine_s(
    tiny_model: Qwen3ForCausalLM, loop: Loop
) -> None:
    def answer(row: int, _: Sample) -> Request:
        raise RuntimeError(f"no answer to row {row}")

    asked = engine(tiny_model, loop=loop)
    with pytest.raises(RuntimeError, match=r"^no answer to row"):
        serve(asked, requests(3), answer)
    assert [len(sample.ids) for sample in asked.generate(requests(3))] == [
        len(sample.ids) for sample in engine(tiny_model, loop=loop).generate(requests(3))
    ]


def test_merged_and_disabled_adapters_act_as_in_the_model(start_model: Qwen3ForCausalLM) -> None:
    lora = LoraConfig(r=4, target_modules=["k_proj", "o_proj", "up_proj"], task_type="CAUSAL_LM")
    model = get_peft_model(copy.deepcopy(start_model), lora).eval()
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.3, generator=torch.Generator().manual_seed(0))
    static_, rows = engine(model, FREE, [1509], "graphed"), requests(3)

    def ids(found: list[Sample]) -> list[list[int]]:
        return [sample.ids for sample in found]

    adapted = ids(static_.generate(rows))
    plain = ids(engine(start_model, FREE, [1509]).generate(rows))
    assert adapted == ids(engine(model, FREE, [1509], "dynamic").generate(rows)) != plain
    with model.disable_adapter():
        assert ids(static_.generate(rows)) == plain
    assert ids(static_.generate(rows)) == adapted
    model.merge_adapter()
    assert ids(static_.generate(rows)) == adapted


@pytest.mark.parametrize(
    "odd",
    [
        {"lora_dropout": 0.1},
        {"use_dora": True},
        {"lora_bias": True},
        {"target_modules": ["q_proj", "lm_head"]},
    ],
)
def test_other_adapters_are_left_to_the_dynamic_loop(
    tiny_model: Qwen3ForCausalLM, odd: dict
) -> None:
    settings = {"r": 4, "target_modules": ["q_proj"], "task_type": "CAUSAL_LM"} | odd
    model = get_peft_model(copy.deepcopy(tiny_model), LoraConfig(**settings)).eval()
    assert supported(tiny_model)
    assert supported(model) == (
        "target_modules" in odd
    )  # a head with an adapter is called as the module it is
    other = IA3Config(
        target_modules=["k_proj", "down_proj"],
        feedforward_modules=["down_proj"],
        task_type="CAUSAL_LM",
    )
    assert not supported(get_peft_model(copy.deepcopy(tiny_model), other))


def test_static_loop_keeps_its_slots_but_not_what_was_in_them(tiny_model: Qwen3ForCausalLM) -> None:
    rows = requests()
    used = engine(tiny_model, FREE, loop="graphed")
    used.generate(rows)
    held = used.static.slots
    assert used.generate(rows[2:5]) == engine(tiny_model, FREE, loop="graphed").generate(rows[2:5])
    assert used.static.slots is held
    longer = Request(rows[1].context * 10, 200, ("row",))
    assert used.generate([longer]) == engine(tiny_model, FREE, loop="graphed").generate([longer])
    assert used.static.slots is not held


def test_static_loop_samples_from_the_weights_as_they_are(tiny_model: Qwen3ForCausalLM) -> None:
    """The optimizer changes adapters in place; weights that moved need new graphs."""
    lora = LoraConfig(
        r=4,
        target_modules=["q_proj", "v_proj", "o_proj", "gate_proj", "down_proj"],
        task_type="CAUSAL_LM",
    )
    model = get_peft_model(copy.deepcopy(tiny_model), lora).eval()
    static, rows = engine(model, FREE, [1509], "graphed"), requests(3)
    before = static.generate(rows)
    assert before == engine(tiny_model, FREE, [1509], "graphed").generate(rows)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(weight, std=0.3, generator=torch.Generator().manual_seed(0))
    held, after = static.static.slots, static.generate(rows)
    assert static.static.slots is held
    assert [sample.ids for sample in after] == [
        sample.ids for sample in engine(model, FREE, [1509], "dynamic").generate(rows)
    ]
    assert [sample.ids for sample in after] != [sample.ids for sample in before]
    for weight in model.parameters():
        weight.data = weight.data.clone()
    static.generate(rows)
    assert static.static.slots is not held
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "base_layer" in name:
                weight.mul_(1.5)
    changed = engine(model, FREE, [1509], "dynamic").generate(rows)
    assert [sample.ids for sample in static.generate(rows)] == [sample.ids for sample in changed]


@pytest.mark.skipif(
    shutil.which("g++") is None, reason="PyTorch compiles for a CPU with g++, which is not there"
)
def test_compiled_layers_sample_what_plain_ones_do(start_model: Qwen3ForCausalLM) -> None:
    """On a GPU with graphs and the Triton kernel, in bfloat16, where log-probabilities are compared instead of ids."""
    device, dtype = (
        ("cuda", torch.bfloat16) if torch.cuda.is_available() else ("cpu", torch.float32)
    )
    lora = LoraConfig(
        r=4,
        target_modules=["q_proj", "v_proj", "o_proj", "gate_proj", "down_proj"],
        task_type="CAUSAL_LM",
    )
    model = get_peft_model(copy.deepcopy(start_model).to(device, dtype), lora).eval()
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.05)
    rows = requests()
    compiled = engine(model, loop="compiled")
    for batch in (rows, rows[:3], rows[::-1]):  # other numbers of rows, other slots
        samples = compiled.generate(batch)
        assert compiled.static.compiled
        for row, sample in zip(batch, samples, strict=True):
            with (
                torch.inference_mode(),
                torch.autocast(device, torch.bfloat16, enabled=device == "cuda"),
            ):
                logits = (
                    model(torch.tensor([row.context + sample.ids], device=device))
                    .logits[0, len(row.context) - 1 : -1]
                    .float()
                )
            expected = (logits / PILOT.temperature).log_softmax(-1)[
                range(len(sample.ids)), sample.ids
            ]
            assert sample.logprobs == pytest.approx(
                expected.tolist(), abs=1e-4 if device == "cpu" else 0.2
            )
        if device == "cpu":
            assert [s.ids for s in samples] == [
                s.ids for s in engine(model, loop="graphed").generate(batch)
            ]


def test_layers_that_cannot_be_compiled_run_as_they_are(
    tiny_model: Qwen3ForCausalLM, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise InternalTorchDynamoError("no C compiler found")

    monkeypatch.setattr(torch, "compile", lambda _: refuse)
    compiled, rows = engine(tiny_model, loop="compiled"), requests(3)
    assert compiled.generate(rows) == engine(tiny_model, loop="graphed").generate(rows)
    assert caplog.messages == [
        "layers cannot be compiled here and run uncompiled, more slowly: no C compiler found"
    ]
    assert compiled.describe()["loop"] == "graphed"


def test_loop_is_chosen_by_device_and_architecture(tiny_model: Qwen3ForCausalLM) -> None:
    assert engine(tiny_model).loop == "dynamic"
    config = LlamaConfig(
        vocab_size=1500,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
    )
    other = LlamaForCausalLM(config).eval()
    assert len(engine(other).generate(requests(2))) == 2
    with pytest.raises(
        EngineError,
        match=r"the graphed loop knows Qwen3 with full attention .*, not this LlamaForCausalLM",
    ):
        engine(other, loop="graphed").generate(requests(2))


def test_prefill_goes_in_groups(
    tiny_model: Qwen3ForCausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = requests()
    expected = engine(tiny_model, loop="graphed").generate(rows)
    monkeypatch.setattr(static_loop, "PREFILL_TOKENS", 60)
    shapes: list[tuple[int, int]] = []
    original = Forward.prefill

    def prefill(self: Forward, ids: torch.Tensor, slots: torch.Tensor, cache: Cache) -> None:
        shapes.append(tuple(ids.shape))
        original(self, ids, slots, cache)

    monkeypatch.setattr(Forward, "prefill", prefill)
    grouped = engine(tiny_model, loop="graphed").generate(rows)
    assert shapes == [
        (1, 39),
        (2, 16),
        (1, 39),
        (2, 8),
        (1, 27),
    ]  # a context of one id needs no prefill
    assert [sample.ids for sample in grouped] == [sample.ids for sample in expected]


def test_description_names_engine_and_numbers(tiny_model: Qwen3ForCausalLM) -> None:
    described = engine(tiny_model).describe()
    assert (described["engine"], described["dtype"], described["device"]) == (
        "transformers",
        "torch.float32",
        "cpu",
    )
    assert described["torch"] == torch.__version__
    assert described["loop"] == "dynamic"
    assert engine(tiny_model, loop="graphed").describe()["loop"] == "graphed"


def decodings(count: int) -> list[Decoding]:
    rng = Random(1)
    return [
        Decoding(
            temperature=rng.choice((0.3, 0.6, 1.0, 1.7)), top_p=rng.choice((0.1, 0.5, 0.95, 1.0)), top_k=rng.choice((0, 1, 5, 20, 50, 99)),
            min_p=rng.choice((0.0, 0.02, 0.3, 1.0)), seed=0,
        )
        for _ in range(count)
    ]  # fmt: skip


def test_truncation_agrees_with_transformers() -> None:
    """The same warpers in the order in which `generate` applies them."""
    generator = torch.Generator().manual_seed(2)
    for decoding in decodings(150):
        logits = torch.randn(4, 50, generator=generator) * 3
        warped = TemperatureLogitsWarper(decoding.temperature)(None, logits)
        if decoding.top_k:
            warped = TopKLogitsWarper(decoding.top_k)(None, warped)
        if decoding.top_p < 1:
            warped = TopPLogitsWarper(decoding.top_p)(None, warped)
        if decoding.min_p > 0:
            warped = MinPLogitsWarper(decoding.min_p)(None, warped)
        expected, found = warped.softmax(-1), truncate(logits, decoding)
        assert torch.equal(found > 0, expected > 0), decoding
        torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("vocabulary", [3000, 160 * CHUNK])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_candidates_change_no_choice(dtype: torch.dtype, vocabulary: int) -> None:
    """In BF16 about three ids are tied with the 20th."""
    generator = torch.Generator().manual_seed(5)
    narrowed = 0
    for decoding in decodings(150):
        logits = (torch.randn(8, vocabulary, generator=generator) * 2).to(dtype)
        uniforms = torch.rand(8, generator=generator, dtype=torch.float64)
        ids, logprobs = choose_tokens(logits, decoding, uniforms)
        found, scores = choose_tokens(logits, decoding, uniforms, narrow=True)
        assert torch.equal(ids, found), decoding
        assert torch.equal(logprobs, scores)
        narrowed += candidates(logits, decoding) is not None
    assert narrowed > 100


def test_truncation_keeps_at_least_one_id() -> None:
    logits = torch.tensor([[0.0, 5.0, 1.0], [2.0, 2.0, 2.0]])
    kept = truncate(logits, Decoding(temperature=0.01, top_p=0.01, top_k=1, min_p=1.0, seed=0))
    assert torch.allclose(kept.sum(-1), torch.ones(2))
    assert kept[0].tolist() == [0, 1, 0]


@pytest.mark.parametrize(
    "decoding", [FREE, PILOT, Decoding(temperature=1.0, top_p=0.8, top_k=6, min_p=0.1, seed=0)]
)
def test_choices_follow_the_truncated_probabilities(decoding: Decoding) -> None:
    draws = 20_000
    logits = torch.randn(12, generator=torch.Generator().manual_seed(3)) * 1.5
    uniforms = torch.from_numpy(stream("frequencies").random(draws))
    ids, _ = choose_tokens(logits.expand(draws, -1), decoding, uniforms)
    expected = truncate(logits[None], decoding)[0].double().numpy() * draws
    observed = np.bincount(ids.numpy(), minlength=12)
    assert observed[expected == 0].sum() == 0
    kept = expected > 0
    assert (
        stats.chisquare(
            observed[kept], expected[kept] * observed[kept].sum() / expected[kept].sum()
        ).pvalue
        > 1e-3
    )


@pytest.mark.parametrize("edge", [0.0, np.nextafter(1.0, 0.0)])
def test_extreme_draws_stay_inside_the_kept_ids(edge: float) -> None:
    logits = torch.randn(500, 40, generator=torch.Generator().manual_seed(4)) * 4
    decoding = Decoding(temperature=0.6, top_p=0.9, top_k=5, min_p=0.0, seed=0)
    ids, logprobs = choose_tokens(logits, decoding, torch.full((500,), edge, dtype=torch.float64))
    kept = truncate(logits, decoding) > 0
    assert kept.gather(-1, ids[:, None]).all()
    ends = kept.int().argmax(-1) if edge == 0 else 39 - kept.flip(-1).int().argmax(-1)
    assert torch.equal(ids, ends)
    assert (logprobs <= 0).all()


def test_scripted_engine_cuts_to_the_budget() -> None:
    scripted = ScriptedEngine(lambda request: [5, 6, 2], frozenset({2}))
    rows = [Request([1], budget, ("row",)) for budget in (1, 2, 3, 9)]
    assert scripted.generate(rows) == [
        Sample([5], [0.0], "length"),
        Sample([5, 6], [0.0] * 2, "length"),
        Sample([5, 6, 2], [0.0] * 3, "stop"),
        Sample([5, 6, 2], [0.0] * 3, "stop"),
    ]
    assert scripted.describe() == {"engine": "scripted"}
