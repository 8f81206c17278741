"""The vLLM engine over a stand-in for vllm: what vLLM is asked, and what its faults become. The real one: `test_vllm_real.py`."""

import importlib
import importlib.util
import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
os.environ.setdefault(
    "VLLM_CPU_KVCACHE_SPACE", "1"
)  # GiB; the CPU build would take most of the memory
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")

import pytest
import torch

from agentrl.policy.settings import Model
from agentrl.rollout.sampler import EngineError, Request, Sample, serve
from agentrl.rollout.settings import Decoding

ROOT = Path(__file__).resolve().parents[2]
START = ROOT / "tests/data/start"
PILOT = Decoding(temperature=0.6, top_p=0.95, top_k=20, min_p=0.0, seed=42)
FREE = Decoding(temperature=1.3, top_p=1.0, top_k=0, min_p=0.0, seed=42)
GREEDY = Decoding(temperature=0.0, top_p=0.95, top_k=20, min_p=0.0, seed=42)
CPU = Model(start=str(START), dtype="float32", device="cpu", engine="vllm", threads=1)


# A stand-in for vllm: requests come back after one step each, in reverse order.


class FakeLLM:
    """`vllm.LLM` as far as the engine uses it; class attributes decide what goes wrong."""

    made: dict[str, Any]
    start: Exception | None = None
    fault: Exception | None = None
    logprob = -0.5
    finish = "stop"

    def __init__(self, **arguments: Any) -> None:
        type(self).made = arguments
        if self.start is not None:
            raise self.start
        self.llm_engine, self.asked, self.waiting = self, [], []
        self.adapters: list[Any] = []
        self.resets = 0

    def apply_model(self, function: Callable[[Any], None]) -> None:
        self.model = SimpleNamespace(logits_processor=torch.nn.Identity())
        function(self.model)

    def add_request(
        self, name: str, prompt: dict[str, Any], params: Any, lora_request: Any = None
    ) -> None:
        self.asked.append(
            SimpleNamespace(name=name, prompt=prompt, lora=lora_request, **vars(params))
        )
        self.waiting.insert(0, name)

    def step(self) -> list[Any]:
        if type(self).fault is not None:
            raise type(self).fault
        name = self.waiting.pop()
        scores = SimpleNamespace(logprobs=[self.logprob, -1.0])
        output = SimpleNamespace(
            token_ids=[int(name) + 100, 2], logprobs=scores, finish_reason=self.finish
        )
        return [SimpleNamespace(request_id=name, outputs=[output], finished=True)]

    def add_lora(self, request: Any) -> bool:
        self.adapters.append(request)
        return True

    def reset_prefix_cache(self) -> bool:
        self.resets += 1
        return True


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> type[FakeLLM]:
    """The engine's module over a stand-in; the class it will start."""

    class Fresh(FakeLLM):
        pass

    class Plain(SimpleNamespace):
        pass

    module, lora, request, params = (
        ModuleType(n) for n in ("vllm", "vllm.lora", "vllm.lora.request", "vllm.sampling_params")
    )
    module.LLM, module.SamplingParams, module.__version__ = Fresh, Plain, "0.26.0"
    request.LoRARequest = lambda name, number, path: SimpleNamespace(
        name=name, number=number, path=path
    )
    params.RequestOutputKind = SimpleNamespace(FINAL_ONLY="final")
    for made in (module, lora, request, params):
        monkeypatch.setitem(sys.modules, made.__name__, made)
    monkeypatch.delitem(sys.modules, "agentrl.engine.vllm", raising=False)
    return Fresh


def opened(decoding: Decoding = PILOT, section: Model = CPU, **beside: int) -> Any:
    """An engine over whatever `vllm` is importable now."""
    module = importlib.import_module("agentrl.engine.vllm")
    return module.VllmEngine(
        START, section, decoding, {2, 1}, module.Beside(**beside) if beside else None
    )


def requests(count: int = 6, budget: int = 24) -> list[Request]:
    """Rows of different context, length and budget."""
    rng = torch.Generator().manual_seed(5)
    lengths = [3, 40, 9, 17, 28, 64][:count]
    contexts = [torch.randint(3, 1400, (length,), generator=rng).tolist() for length in lengths]
    return [
        Request(context, budget - 2 * row, ("episode", 42, 0, f"dev-{row:04d}", 0, 0))
        for row, context in enumerate(contexts)
    ]


def test_what_vllm_is_asked(fake: type[FakeLLM]) -> None:
    engine = opened()
    row = requests(1)[0]
    engine.generate([row])
    asked = engine.llm.asked[0]
    assert asked.prompt == {"prompt_token_ids": row.context}
    wanted = {
        "temperature": 1.0,
        "top_p": 0.95,
        "top_k": 20,
        "min_p": 0.0,
        "max_tokens": 24,
        "stop_token_ids": [1, 2],
        "ignore_eos": True,
    }
    assert {name: getattr(asked, name) for name in wanted} == wanted
    assert (asked.detokenize, asked.logprobs, asked.lora) == (False, 0, None)
    assert fake.made["skip_tokenizer_init"] is True
    assert fake.made["trust_remote_code"] is False
    assert fake.made["generation_config"] == "vllm"
    assert fake.made["max_model_len"] == 2048
    assert "enable_lora" not in fake.made


def test_greedy_is_asked_for_as_temperature_zero(fake: type[FakeLLM]) -> None:
    engine = opened(GREEDY)
    engine.generate(requests(1))
    assert engine.llm.asked[0].temperature == 0.0
    assert engine.llm.model.logits_processor(torch.tensor([3.0])).tolist() == [3.0]


def test_logits_leave_the_model_scaled_and_in_float32(fake: type[FakeLLM]) -> None:
    left = opened().llm.model.logits_processor(torch.tensor([3.0, -1.5], dtype=torch.bfloat16))
    assert left.dtype == torch.float32
    assert left.tolist() == pytest.approx([5.0, -2.5])


def test_a_row_s_seed_depends_on_its_key_alone(fake: type[FakeLLM]) -> None:
    rows = requests()
    together, alone = opened(), opened()
    together.generate(rows)
    alone.generate([replace(rows[3], max_tokens=5)])
    seeds = {tuple(asked.prompt["prompt_token_ids"]): asked.seed for asked in together.llm.asked}
    assert len(set(seeds.values())) == len(rows)
    assert alone.llm.asked[0].seed == seeds[tuple(rows[3].context)]
    assert all(0 <= seed < 2**63 for seed in seeds.values())
    assert (
        max(seeds.values()) > 2**40
    )  # few enough bits would let two rows of a long run share a stream


def test_samples_come_in_request_order_whatever_finishes_first(fake: type[FakeLLM]) -> None:
    original = fake.step

    def last_first(self: FakeLLM) -> list[Any]:
        self.waiting.reverse()
        done = original(self)
        self.waiting.reverse()
        return done

    fake.step = last_first
    samples = opened().generate(requests())
    assert [sample.ids for sample in samples] == [[100 + n, 2] for n in range(1, 7)]
    assert samples[0] == Sample([101, 2], [-0.5, -1.0], "stop")


def test_a_next_turn_joins_without_waiting(fake: type[FakeLLM]) -> None:
    """Row 0's second turn is queued while row 1 still runs its first."""
    engine, order = opened(), []

    def answer(row: int, sample: Sample) -> Request | None:
        order.append((row, len(engine.llm.asked), len(engine.llm.waiting)))
        return (
            Request([5, *sample.ids[:1]], 4, ("episode", row, "second"))
            if len(order) == 1
            else None
        )

    serve(engine, requests(2), answer)
    assert order == [(0, 2, 1), (1, 3, 1), (0, 3, 0)]


def test_beside_a_trainer_it_takes_what_the_rows_need(fake: type[FakeLLM]) -> None:
    opened(rows=4, length=1000, rank=12)
    shape = json.loads((START / "config.json").read_text())
    token = 2 * shape["num_hidden_layers"] * shape["num_key_value_heads"] * shape["head_dim"] * 4
    assert fake.made["max_model_len"] == 1000
    assert (fake.made["max_num_seqs"], fake.made["max_lora_rank"], fake.made["max_loras"]) == (
        4,
        16,
        1,
    )
    assert token * 4 * 1000 < fake.made["kv_cache_memory_bytes"] < token * 4 * 1000 * 1.5
    assert fake.made["max_num_batched_tokens"] == 4 * 1000, (
        "vLLM warms up with a full pass, which must fit"
    )


def test_each_policy_step_has_an_adapter_of_its_own_and_no_old_cache(
    fake: type[FakeLLM], tmp_path: Path
) -> None:
    engine = opened(rows=4, length=1000, rank=12)
    saved: list[Path] = []
    model = SimpleNamespace(save_pretrained=saved.append)
    for step in (1, 2):
        engine.follow(model)
        engine.generate(requests(1))
        assert engine.llm.asked[-1].lora is engine.llm.adapters[-1]
        assert engine.llm.resets == step
    assert [adapter.number for adapter in engine.llm.adapters] == [1, 2]
    assert len(saved) == 2


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (
            Request([5], 0, ("row", 1)),
            r"\('row', 1\): needs a context and room for one token, got 0",
        ),
        (Request([], 5, ("row", 1)), "needs a context"),
        (Request([5, 1500], 5, ("row", 1)), "an id is outside the vocabulary of 1500"),
        (Request([5, -1], 5, ("row", 1)), "outside the vocabulary"),
        (
            Request([5] * 2000, 49, ("row", 1)),
            "2000 tokens and 49 to come exceed the engine's 2048",
        ),
    ],
)
def test_impossible_rows_are_engine_errors(fake: type[FakeLLM], bad: Request, message: str) -> None:
    with pytest.raises(EngineError, match=message):
        opened().generate([bad])


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("CUDA error: an illegal memory access was encountered"),
        torch.OutOfMemoryError("CUDA out of memory"),
        ValueError("Free memory on device cuda:0 (1.2/140.0 GiB) on startup is less than desired"),
        AssertionError("scheduler"),
        type("EngineDeadError", (Exception,), {})("EngineCore encountered an issue"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_faults_are_engine_errors_and_final(fake: type[FakeLLM], error: Exception) -> None:
    """A GPU lost in mid-run: no score, and no second attempt on an engine whose state is unknown."""
    engine = opened()
    fake.fault = error
    with pytest.raises(EngineError, match="failed with 2 rows running") as caught:
        engine.generate(requests(2))
    assert str(error) in str(caught.value)
    fake.fault = None
    with pytest.raises(
        EngineError, match="failed with 2 rows running before; start the stage anew"
    ):
        engine.generate(requests(1))


@pytest.mark.parametrize(
    "error",
    [
        ImportError("libcudart.so.13"),
        RuntimeError("no kernel image is available"),
        OSError("driver"),
    ],
)
def test_an_engine_that_does_not_start_says_why(fake: type[FakeLLM], error: Exception) -> None:
    fake.start = error
    with pytest.raises(
        EngineError,
        match=f"vllm engine did not start: {type(error).__name__}: .*set model.engine to transformers",
    ):
        opened()


@pytest.mark.parametrize(
    ("attribute", "value", "message"),
    [("logprob", float("nan"), "not finite"), ("finish", "abort", "'abort'")],
)
def test_what_no_score_can_rest_on_is_an_engine_error(
    fake: type[FakeLLM], attribute: str, value: object, message: str
) -> None:
    setattr(fake, attribute, value)
    with pytest.raises(EngineError, match=message):
        opened().generate(requests(1))


def test_an_error_of_the_environment_is_not_the_engine_s(fake: type[FakeLLM]) -> None:
    def answer(*_: object) -> None:
        raise KeyError("task")

    with pytest.raises(KeyError, match="task"):
        serve(opened(), requests(1), answer)


def test_too_little_gpu_memory_is_said_before_anything_is_loaded(
    fake: type[FakeLLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = CPU.model_copy(update={"device": "cuda", "dtype": "bfloat16"})
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Tesla T4")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (2 * 2**30, 16 * 2**30))
    with pytest.raises(
        EngineError,
        match=r"needs 3\.0 GiB .*, 2\.0 of 16\.0 GiB are free on Tesla T4; free the GPU",
    ):
        opened(section=gpu)
    assert not hasattr(fake, "made")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (8 * 2**30, 16 * 2**30))
    opened(section=gpu)
    assert fake.made["gpu_memory_utilization"] == pytest.approx(0.45)


@pytest.mark.parametrize(("free", "limited"), [(100, True), (3.5, False)])
def test_evaluation_takes_cache_for_its_rows_where_there_is_more(
    fake: type[FakeLLM], monkeypatch: pytest.MonkeyPatch, free: float, limited: bool
) -> None:
    gpu = CPU.model_copy(update={"device": "cuda", "dtype": "bfloat16"})
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (int(free * 2**30), 100 * 2**30))
    opened(section=gpu)
    token = 2 * 2 * 2 * 32 * 2  # keys and values, layers, heads, width, bytes
    assert ("kv_cache_memory_bytes" in fake.made) is limited
    assert (
        not limited
        or token * 512 * 2048 < fake.made["kv_cache_memory_bytes"] < token * 512 * 2048 * 1.1
    )


def test_a_rank_above_vllm_s_is_refused(fake: type[FakeLLM]) -> None:
    with pytest.raises(EngineError, match=r"training\.lora\.r: 600 is above vLLM's largest, 512"):
        opened(rows=4, length=1000, rank=600)


def test_the_description_names_engine_and_numerics(
    fake: type[FakeLLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
    described = opened().describe()
    assert (
        described["engine"],
        described["vllm"],
        described["dtype"],
        described["batch_invariant"],
    ) == (
        "vllm",
        "0.26.0",
        "torch.float32",
        True,
    )
