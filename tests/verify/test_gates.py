"""Verification's gates: each judges by its own rule, told from the producer's where the two are written twice."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from agentrl.policy import merge
from agentrl.verify import gates, merges, node, sums, tensors
from agentrl.verify.breaks import Findings

TARGETS = ("q_proj", "down_proj")
GPU = {
    "torch": "2.13.0+cu130", "built_for": "13.0", "driver": "580.1", "driver_cuda": "13.0", "name": "H200", "count": 1, "memory": 100,
    "free": 90, "bf16": True,
}  # fmt: skip


def batch(*rows: tuple[float, int]) -> list[dict[str, Any]]:
    """Rows of (advantage, sampled tokens), each with an observation of five tokens in between."""
    return [
        {"advantage": advantage, "loss_runs": [[1, 1], [0, 5], [1, length - 1]]}
        for advantage, length in rows
    ]


@pytest.mark.parametrize(
    ("loss_type", "expected"),
    [
        ("dapo", -(1.0 * 4 - 1.0 * 12) / 16 + 0.02 * 0.5),
        ("bnpo", -(1.0 * 4 - 1.0 * 12) / 16 + 0.02 * 0.5),
        ("dr_grpo", (-(1.0 * 4 - 1.0 * 12) + 0.02 * 0.5 * 16) / (2 * 100)),
    ],
)
def test_the_loss_by_hand(loss_type: str, expected: float) -> None:
    low, high = gates.loss_range(
        batch((1.0, 4), (-1.0, 12)), 0.5, {"kl": 0.02, "loss_type": loss_type}, 100
    )
    assert low == high == pytest.approx(expected)


def test_the_loss_of_rows_weighs_the_kl_by_where_it_lies() -> None:
    """All of 8 nats in the row of 12 tokens gives 8 / 12 / 2, all of them in the row of 4 gives 8 / 4 / 2."""
    found = gates.loss_range(
        batch((1.0, 4), (-1.0, 12)), 0.5, {"kl": 0.02, "loss_type": "grpo"}, 100
    )
    assert found == pytest.approx((0.02 * 8 / 12 / 2, 0.02 * 8 / 4 / 2))


def test_a_row_that_is_left_out_counts_no_token() -> None:
    rows = [*batch((1.0, 4)), {"advantage": -1.0, "loss_runs": [[0, 12]]}]
    assert gates.loss_range(rows, 0.0, {"kl": 0.02, "loss_type": "dapo"}, 100) == pytest.approx(
        (-1.0, -1.0)
    )
    assert gates.loss_range(rows, 0.0, {"kl": 0.02, "loss_type": "grpo"}, 100) == pytest.approx(
        (-0.5, -0.5)
    )


def test_an_unknown_loss_has_no_rule() -> None:
    with pytest.raises(ValueError, match=r"training\.loss_type 'luspo': no rule"):
        gates.loss_range(batch((1.0, 4)), 0.0, {"kl": 0.02, "loss_type": "luspo"}, 100)


def test_what_a_merge_is_allowed_is_the_merge_s_own_rule() -> None:
    assert merges.LOGIT_TOLERANCE == merge.LOGIT_TOLERANCE
    assert merges.CONTEXTS == merge.CONTEXTS


def checkpoint(folder: Path, stored: torch.dtype, **config: object) -> Path:
    """A start of two layers with one target and one other weight each, and a target outside of them."""
    folder.mkdir()
    names = [
        f"model.layers.{layer}.{part}.weight"
        for layer in (0, 1)
        for part in ("attn.q_proj", "attn.q_norm", "mlp.down_proj")
    ]
    save_file(
        {name: torch.ones(2, 2, dtype=stored) for name in names}, folder / "model.safetensors"
    )
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def test_targets_and_dtype_are_read_from_the_weights_where_they_lie_there(tmp_path: Path) -> None:
    start = checkpoint(tmp_path / "start", torch.bfloat16, num_hidden_layers=7, dtype="float32")
    assert (tensors.expected_targets(start, TARGETS), tensors.stored_dtype(start, TARGETS)) == (
        4,
        "bfloat16",
    )
    (start / "model.safetensors").unlink()
    assert (tensors.expected_targets(start, TARGETS), tensors.stored_dtype(start, TARGETS)) == (
        14,
        "float32",
    )
    (start / "config.json").write_text('{"torch_dtype": "bfloat16"}', encoding="utf-8")
    assert (tensors.expected_targets(start, TARGETS), tensors.stored_dtype(start, TARGETS)) == (
        None,
        "bfloat16",
    )


def test_a_target_is_told_by_the_last_part_of_its_name() -> None:
    assert tensors.is_target("model.layers.0.attn.q_proj.weight", TARGETS)
    assert not tensors.is_target("model.layers.0.attn.q_proj.bias", TARGETS)
    assert not tensors.is_target("model.layers.0.attn.my_q_proj.weight", TARGETS)


def test_a_damaged_weight_file_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"\x00" * 20)
    with pytest.raises(ValueError, match=r"model\.safetensors: damaged"):
        tensors.dtypes(tmp_path)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_merged_weight_is_start_plus_adapter_rounded_once(
    tmp_path: Path, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(0)
    start, adapter, merged = (tmp_path / name for name in ("start", "adapter", "merged"))
    for folder in (start, adapter, merged):
        folder.mkdir()
    weight = (0.02 * torch.randn(64, 32, generator=generator)).to(dtype)
    up, down = (
        0.01 * torch.randn(64, 4, generator=generator),
        torch.randn(4, 32, generator=generator),
    )
    stem = "base_model.model.w.lora_"
    save_file(
        {f"{stem}A.weight": down, f"{stem}B.weight": up}, adapter / "adapter_model.safetensors"
    )
    (adapter / "adapter_config.json").write_text('{"r": 4, "lora_alpha": 8}', encoding="utf-8")
    save_file({"w.weight": weight}, start / "model.safetensors")
    true = weight.float() + 2.0 * (up @ down)
    save_file({"w.weight": true.to(dtype)}, merged / "model.safetensors")
    assert list(sums.wrong_sums(start, adapter, merged)) == []
    true[5, 7] += 0.01
    save_file({"w.weight": true.to(dtype)}, merged / "model.safetensors")
    ((name, excess),) = sums.wrong_sums(start, adapter, merged)
    assert name == "w.weight"
    assert excess > 1


def judged(tmp_path: Path, **gpu: object) -> Findings:
    """The findings about a bfloat16 study on a GPU whose weights have 40 bytes."""
    findings = Findings(tmp_path)
    report = {"weights": 40, "packages": {"torch": "2.13.0+cu130"}, "gpu": GPU | gpu}
    node._gpu(tmp_path / "report.json", report, "bfloat16", findings)
    return findings


def test_a_gpu_that_can_carry_the_study_passes(tmp_path: Path) -> None:
    assert judged(tmp_path).passed
    assert judged(tmp_path, driver_cuda="13.9").passed


@pytest.mark.parametrize(
    ("gpu", "field"),
    [
        ({"built_for": None, "driver_cuda": None}, "gpu.built_for"),
        ({"driver_cuda": None}, "gpu.driver_cuda"),
        ({"driver_cuda": "12.8"}, "gpu.driver_cuda"),
        ({"name": None}, "gpu.name"),
        ({"count": 0}, "gpu.name"),
        ({"bf16": False}, "gpu.bf16"),
        ({"free": 79}, "gpu.free"),
        ({"free": 101}, "gpu.free"),
        ({"torch": "2.12.0"}, "gpu.torch"),
    ],
)
def test_a_gpu_that_cannot_is_named(tmp_path: Path, gpu: dict[str, object], field: str) -> None:
    assert judged(tmp_path, **gpu).first["node"].field == field
