"""Benchmark: the tiny run measures every cell, its arithmetic is right, and a file of another machine is not added to."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from benchmarks.gpu import decoding, limit
from benchmarks.gpu import run as benchmark
from benchmarks.gpu.limit import step_bytes
from benchmarks.gpu.result import MergeError, Result, tables
from benchmarks.gpu.scale import FULL, QWEN3_1_7B, SMALL

QWEN3_PARAMETERS = 1_720_574_976
"""Of Qwen/Qwen3-1.7B, tied embeddings counted once."""


def run(out: Path, *arguments: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            sys, "argv", ["benchmarks/gpu/run.py", "--tiny", "--out", str(out), *arguments]
        )
        benchmark.main()


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny run's file, its cells made by two commands."""
    out = tmp_path_factory.mktemp("benchmark") / "speed.json"
    run(out, "--only", "speed/*", "profile/*")
    run(out, "--only", "grpo/*", "--merge")
    return out


@pytest.fixture(scope="module")
def cells(measured: Path) -> dict[str, Any]:
    return json.loads(measured.read_text())["cells"]


def test_every_cell_is_there_and_none_failed(cells: dict[str, Any]) -> None:
    assert set(cells) == set(SMALL.cells())
    assert [cell for cell in cells.values() if "error" in cell] == []
    ours = {name for name in cells if "vllm" not in name}
    assert {name for name in ours if name.startswith("speed/")} == {
        name for name in ours if "tokens_per_second" in cells[name]
    }
    assert {name for name in ours if name.startswith("grpo/")} == {
        name for name in ours if "step_seconds" in cells[name]
    }


def test_cells_of_decoding_add_up(cells: dict[str, Any]) -> None:
    for name, cell in cells.items():
        if not name.startswith("speed/") or "vllm" in name:
            continue
        _, method, count = name.split("/")
        assert (cell["sequences"], cell["new_tokens"]) == (int(count), SMALL.new[method])
        assert cell["tokens"] == int(count) * SMALL.new[method]
        assert cell["tokens_per_second"] == pytest.approx(
            cell["tokens"] / cell["seconds"], rel=0.05
        )
        if "percent_of_limit" in cell:
            assert cell["percent_of_limit"] == pytest.approx(
                100 * cell["decode_tokens_per_second"] / cell["limit"], rel=1e-3, abs=0.01
            )
    assert (
        cells["speed/hf-sequential/2"]["limit"] == cells["speed/hf-sequential/1"]["limit"]
    )  # one sequence at a time


def test_a_profiled_step_names_its_longest_kernels(cells: dict[str, Any], measured: Path) -> None:
    cell = cells["profile/graphed/4"]
    assert (cell["sequences"], len(cell["kernels"])) == (4, 8)
    spent = [milliseconds for _, milliseconds in cell["kernels"]]
    assert spent == sorted(spent, reverse=True)
    assert cell["step_ms"] > 0
    assert cell["device_ms"] >= sum(spent) - 0.01
    assert "| graphed, 4 | " in measured.with_suffix(".md").read_text(encoding="utf-8")


def test_a_training_step_is_the_sum_of_its_parts(cells: dict[str, Any]) -> None:
    for name in ("grpo/trl", "grpo/graphed", "grpo/graphed-checkpointing"):
        cell = cells[name]
        assert (cell["steps"], cell["rollouts"], cell["tokens"]) == (
            SMALL.steps[name.split("/")[1]],
            4,
            SMALL.budget,
        )
        assert set(cell["parts"]) == {
            "generation",
            "reference",
            "forward",
            "backward",
            "optimizer",
            "other",
        }
        assert min(cell["parts"].values()) >= 0
        assert sum(cell["parts"].values()) == pytest.approx(cell["step_seconds"], abs=2e-3)
        assert cell["extrapolated"]


def test_a_cell_says_what_made_it(cells: dict[str, Any]) -> None:
    for name, cell in cells.items():
        assert cell["run"]["command"][0] == "-m"
        assert ("--merge" in cell["run"]["command"]) == name.startswith("grpo/")
        assert "torch" in cell["run"]["packages"]


def test_the_kept_tables_are_those_of_the_kept_file() -> None:
    kept = Path(__file__).parents[2] / "benchmarks/gpu/speed.json"
    text = kept.with_suffix(".md").read_text(encoding="utf-8")
    content = json.loads(kept.read_text(encoding="utf-8"))
    assert text == tables(content)
    assert text.endswith(f"\n- {content['remarks'][-1]}\n")


def test_tables_are_made_from_the_file_alone(measured: Path, cells: dict[str, Any]) -> None:
    text = measured.with_suffix(".md").read_text()
    assert text == tables(json.loads(measured.read_text()))
    assert f"{cells['speed/dynamic/4']['tokens_per_second']:,.0f}" in text
    assert f"| {cells['grpo/graphed']['parts']['generation']:.2f} |" in text
    assert "extrapolated" in text
    if "skipped" in cells["speed/vllm/1"]:
        assert "| vLLM engine | - | vllm is not installed | - | - |" in text


def test_a_late_cell_is_named_not_left_out(tmp_path: Path) -> None:
    run(tmp_path / "late.json", "--seconds", "0", "--only", "speed/dynamic/*")
    found = json.loads((tmp_path / "late.json").read_text())["cells"]
    assert [cell.get("skipped") for cell in found.values()] == ["not run: time limit"] * 2


def test_an_unknown_cell_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run(tmp_path / "none.json", "--only", "speed/fast/*")
    assert (
        "no cell matches ['speed/fast/*']; there are speed/hf-sequential/1"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize(("part", "name"), [("machine", "gpu"), ("settings", "prompt")])
def test_other_machines_and_sizes_are_not_merged(tmp_path: Path, part: str, name: str) -> None:
    settings = {"prompt": 12, "parameters": 5}
    first = Result(tmp_path / "x.json", settings, merge=False)
    first.add("speed/dynamic/1", {"skipped": "not run"})
    assert list(Result(tmp_path / "x.json", settings, merge=True).content["cells"]) == [
        "speed/dynamic/1"
    ]
    assert Result(tmp_path / "x.json", settings, merge=False).content["cells"] == {}
    content = json.loads((tmp_path / "x.json").read_text())
    content[part][name] = "other"
    (tmp_path / "x.json").write_text(json.dumps(content))
    with pytest.raises(MergeError, match=f"x.json: {name} is other, of this run "):
        Result(tmp_path / "x.json", settings, merge=True)


def test_limit_of_qwen3_1_7b() -> None:
    """Known answers: the limits at 4.3 TB/s and 1,024 cached tokens beside which vLLM's speeds were first put."""

    def found(count: int) -> float:
        return count * 4.3e12 / step_bytes(FULL, QWEN3_PARAMETERS, count, 1024)

    assert [round(found(count)) for count in (1, 4, 32, 128)] == pytest.approx(
        [1208, 4398, 19113, 29794], rel=2e-3
    )
    assert limit.limit(FULL, QWEN3_PARAMETERS, 4, 1024, 4.3e12) == pytest.approx(
        found(4)
    )  # 512 + 1024 / 2


def test_full_scale_is_the_pilot_s() -> None:
    head, layers, width = (
        QWEN3_1_7B["head_dim"],
        QWEN3_1_7B["num_hidden_layers"],
        QWEN3_1_7B["hidden_size"],
    )
    attention = (
        2 * width * head * (QWEN3_1_7B["num_attention_heads"] + QWEN3_1_7B["num_key_value_heads"])
        + 2 * head
    )
    mlp = 3 * width * QWEN3_1_7B["intermediate_size"]
    assert (
        QWEN3_1_7B["vocab_size"] * width + layers * (attention + mlp + 2 * width) + width
        == QWEN3_PARAMETERS
    )
    assert (FULL.budget, FULL.prompt, FULL.steps["compiled"]) == (768, 512, 16)
    speed = [f"speed/vllm/{count}" for count in (1, 4, 32, 128, 512)]
    profiles = [f"profile/vllm/{count}" for count in (4, 32, 512)]
    assert FULL.cells()[-9:] == ["grpo/vllm", *speed, *profiles]


def test_prompts_never_repeat() -> None:
    seen: list[Any] = []

    def method(prompts: Any, new: int) -> int:
        seen.extend(map(tuple, prompts))
        return len(prompts) * new

    decoding.measure(method, "dynamic", SMALL, 4)
    assert len(set(seen)) == len(seen) == 12
    assert {len(prompt) for prompt in seen} == {SMALL.prompt}
