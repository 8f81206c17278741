"""Engines: a row's ids depend on its context, its budget and its key, never on its neighbours."""

import copy
from collections.abc import Sequence
from random import Random

import numpy as np
import pytest
import torch
from scipy import stats
from transformers import MinPLogitsWarper, Qwen3ForCausalLM, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from agentrl.config import Decoding
from agentrl.engine.base import EngineError, Request, Sample
from agentrl.engine.sampling import choose, truncate
from agentrl.engine.scripted import ScriptedEngine
from agentrl.engine.transformers import TransformersEngine
from agentrl.seeding import stream

PILOT = Decoding(temperature=0.6, top_p=0.95, top_k=20, min_p=0.0, seed=42)
FREE = Decoding(temperature=1.3, top_p=1.0, top_k=0, min_p=0.0, seed=42)
GREEDY = Decoding(temperature=0.0, top_p=0.95, top_k=20, min_p=0.0, seed=42)
STOPS = range(0, 1500, 12)
"""One id in twelve ends a row, so that rows of a batch end at different times."""


def requests(count: int = 8, budget: int = 25) -> list[Request]:
    """Rows of very different context lengths and budgets."""
    rng = Random(0)
    lengths = [1, 40, 3, 17, 40, 2, 9, 28][:count]
    return [
        Request([rng.randrange(1500) for _ in range(length)], budget - 2 * i, ("episode", 42, 0, f"dev-{i:04d}", 0, 0))
        for i, length in enumerate(lengths)
    ]


def engine(model: Qwen3ForCausalLM, decoding: Decoding = PILOT, stops: Sequence[int] = STOPS) -> TransformersEngine:
    return TransformersEngine(model, decoding, stops, pad_id=0)


@pytest.mark.parametrize("decoding", [PILOT, FREE, GREEDY], ids=["pilot", "free", "greedy"])
def test_a_row_is_the_same_alone_and_in_any_batch(tiny_model: Qwen3ForCausalLM, decoding: Decoding) -> None:
    rows = requests()
    together = engine(tiny_model, decoding).generate(rows)
    alone = [engine(tiny_model, decoding).generate([row])[0] for row in rows]
    reversed_ = engine(tiny_model, decoding).generate(rows[::-1])[::-1]
    for a, b, c in zip(together, alone, reversed_, strict=True):
        assert a.ids == b.ids == c.ids
        assert a.finish == b.finish == c.finish
        assert a.logprobs == pytest.approx(b.logprobs, abs=1e-4)


def test_rows_end_by_stop_or_by_their_own_budget(tiny_model: Qwen3ForCausalLM) -> None:
    rows = requests()
    samples = engine(tiny_model, FREE, stops=STOPS[::3]).generate(rows)
    assert {sample.finish for sample in samples} == {"stop", "length"}
    assert len({len(sample.ids) for sample in samples}) > 3
    for row, sample in zip(rows, samples, strict=True):
        assert len(sample.ids) == len(sample.logprobs)
        assert not set(sample.ids[:-1]) & set(STOPS[::3])
        assert (sample.ids[-1] in STOPS[::3]) == (sample.finish == "stop")
        assert len(sample.ids) == row.max_tokens or (sample.finish == "stop" and len(sample.ids) < row.max_tokens)


def test_budgets_are_exact_without_a_stop(tiny_model: Qwen3ForCausalLM) -> None:
    rows = requests()
    samples = engine(tiny_model, stops=[1499 + 10]).generate(rows)
    assert [(len(sample.ids), sample.finish) for sample in samples] == [(row.max_tokens, "length") for row in rows]


def test_a_smaller_budget_only_cuts(tiny_model: Qwen3ForCausalLM) -> None:
    row = requests(1)[0]
    whole = engine(tiny_model, stops=[1509]).generate([row])[0]
    for budget in (1, 2, 11):
        cut = engine(tiny_model, stops=[1509]).generate([Request(row.context, budget, row.key)])[0]
        assert cut.ids == whole.ids[:budget]


def test_finished_rows_leave_at_once(tiny_model: Qwen3ForCausalLM) -> None:
    """Every forward pass works on exactly the rows that still run."""
    shapes: list[tuple[int, int]] = []
    hook = tiny_model.register_forward_pre_hook(lambda _, __, kwargs: shapes.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True)
    try:
        samples = engine(tiny_model, FREE).generate(requests())
    finally:
        hook.remove()
    lengths = [len(sample.ids) for sample in samples]
    assert [rows for rows, _ in shapes] == [sum(length > step for length in lengths) for step in range(max(lengths))]
    assert [width for _, width in shapes] == [40] + [1] * (max(lengths) - 1)


def test_same_key_same_ids_and_other_key_other_ids(tiny_model: Qwen3ForCausalLM) -> None:
    row = requests(1)[0]
    others = [Request(row.context, row.max_tokens, (*row.key[:-2], trial, turn)) for trial, turn in ((0, 0), (1, 0), (0, 1))]
    first, *rest = engine(tiny_model, FREE, stops=[1509]).generate([row, *others])
    assert first.ids == rest[0].ids
    assert len({tuple(sample.ids) for sample in rest}) == 3


@pytest.mark.parametrize("decoding", [PILOT, FREE, GREEDY], ids=["pilot", "free", "greedy"])
def test_logprobs_are_those_of_a_teacher_forced_pass(tiny_model: Qwen3ForCausalLM, decoding: Decoding) -> None:
    rows = requests()
    for row, sample in zip(rows, engine(tiny_model, decoding).generate(rows), strict=True):
        with torch.inference_mode():
            logits = tiny_model(torch.tensor([row.context + sample.ids])).logits[0, len(row.context) - 1 : -1]
        expected = (logits / (decoding.temperature or 1.0)).log_softmax(-1)[range(len(sample.ids)), sample.ids]
        assert sample.logprobs == pytest.approx(expected.tolist(), abs=1e-4)


def test_greedy_is_argmax(tiny_model: Qwen3ForCausalLM) -> None:
    row = requests(2)[1]
    sample = engine(tiny_model, GREEDY, stops=[1509]).generate([row])[0]
    with torch.inference_mode():
        logits = tiny_model(torch.tensor([row.context + sample.ids])).logits[0, len(row.context) - 1 : -1]
    assert sample.ids == logits.argmax(-1).tolist()


def test_no_rows_no_samples(tiny_model: Qwen3ForCausalLM) -> None:
    assert engine(tiny_model).generate([]) == []


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (Request([1, 2], 0, ("row",)), r"\('row',\): needs a context and room for one token, got 0"),
        (Request([1, 2], -3, ("row",)), "got -3"),
        (Request([], 5, ("row",)), "needs a context"),
        (Request([1, 1_000_000], 5, ("row",)), "engine failed on 2 rows: index out of range"),
    ],
)
def test_impossible_rows_are_engine_errors(tiny_model: Qwen3ForCausalLM, bad: Request, message: str) -> None:
    with pytest.raises(EngineError, match=message):
        engine(tiny_model).generate([*requests(1), bad])


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("decoding", [PILOT, FREE, GREEDY], ids=["pilot", "free", "greedy"])
def test_logits_that_are_not_finite_are_engine_errors(tiny_model: Qwen3ForCausalLM, value: float, decoding: Decoding) -> None:
    broken = copy.deepcopy(tiny_model)
    with torch.no_grad():
        broken.lm_head.weight.fill_(value)
    with pytest.raises(EngineError, match="not finite"):
        engine(broken, decoding).generate(requests(2))


def test_description_names_engine_and_numbers(tiny_model: Qwen3ForCausalLM) -> None:
    described = engine(tiny_model).describe()
    assert (described["engine"], described["dtype"], described["device"]) == ("transformers", "torch.float32", "cpu")
    assert described["torch"] == torch.__version__


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


def test_truncation_keeps_at_least_one_id() -> None:
    logits = torch.tensor([[0.0, 5.0, 1.0], [2.0, 2.0, 2.0]])
    kept = truncate(logits, Decoding(temperature=0.01, top_p=0.01, top_k=1, min_p=1.0, seed=0))
    assert torch.allclose(kept.sum(-1), torch.ones(2))
    assert kept[0].tolist() == [0, 1, 0]


@pytest.mark.parametrize("decoding", [FREE, PILOT, Decoding(temperature=1.0, top_p=0.8, top_k=6, min_p=0.1, seed=0)])
def test_choices_follow_the_truncated_probabilities(decoding: Decoding) -> None:
    draws = 20_000
    logits = torch.randn(12, generator=torch.Generator().manual_seed(3)) * 1.5
    uniforms = torch.from_numpy(stream("frequencies").random(draws))
    ids, _ = choose(logits.expand(draws, -1), decoding, uniforms)
    expected = truncate(logits[None], decoding)[0].double().numpy() * draws
    observed = np.bincount(ids.numpy(), minlength=12)
    assert observed[expected == 0].sum() == 0
    kept = expected > 0
    assert stats.chisquare(observed[kept], expected[kept] * observed[kept].sum() / expected[kept].sum()).pvalue > 1e-3


@pytest.mark.parametrize("edge", [0.0, np.nextafter(1.0, 0.0)])
def test_extreme_draws_stay_inside_the_kept_ids(edge: float) -> None:
    logits = torch.randn(500, 40, generator=torch.Generator().manual_seed(4)) * 4
    decoding = Decoding(temperature=0.6, top_p=0.9, top_k=5, min_p=0.0, seed=0)
    ids, logprobs = choose(logits, decoding, torch.full((500,), edge, dtype=torch.float64))
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
