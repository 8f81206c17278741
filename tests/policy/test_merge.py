"""Merge: a true merge passes the audit, and every way to get it wrong is named by its tensor."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, Qwen3ForCausalLM

from agentrl.demo.policy import new_model
from agentrl.policy.checkpoint import check_checkpoint
from agentrl.policy.merge import LOGIT_TOLERANCE, MergeError, audit, logit_gap, merge, targeted
from agentrl.study.config import Study

WEIGHTS, ADAPTER = "model.safetensors", "adapter_model.safetensors"
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
TARGET = "model.layers.1.mlp.up_proj.weight"
UNTOUCHED = "model.layers.0.self_attn.q_norm.weight"
CONTEXTS = [[1, 5, 900, 33, 2], [7] * 20, [3]]
Tensors = dict[str, torch.Tensor]


@dataclass
class Merge:
    """A start checkpoint, an adapter and their merge."""

    start: Path
    adapter: Path
    merged: Path
    dtype: str

    def spoil(self, change: Callable[[Tensors], object], where: str = "merged") -> None:
        """Rewrite the stored tensors of one of the three."""
        path = getattr(self, where) / (ADAPTER if where == "adapter" else WEIGHTS)
        tensors = load_file(path)
        change(tensors)
        save_file(tensors, path, {"format": "pt"})

    def audit(self) -> dict[str, object]:
        return audit(self.start, self.adapter, self.merged, self.dtype)


def adapt(model: Qwen3ForCausalLM, folder: Path, targets: tuple[str, ...] = PROJECTIONS) -> None:
    """An adapter whose B is not zero, as after training."""
    torch.manual_seed(1)
    adapted = get_peft_model(
        model, LoraConfig(r=4, lora_alpha=8, target_modules=list(targets), task_type="CAUSAL_LM")
    )
    for name, tensor in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(tensor, std=0.05)
    adapted.save_pretrained(folder)


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def made(
    request: pytest.FixtureRequest,
    study: Study,
    tokenizer: PreTrainedTokenizerFast,
    tmp_path_factory: pytest.TempPathFactory,
) -> Merge:
    """A tied random model, merged; do not edit."""
    root = tmp_path_factory.mktemp(request.param)
    shape = study.demo_policy.architecture.model_copy(
        update={"hidden": 32, "heads": 2, "kv_heads": 1, "head_dim": 16, "mlp": 64}
    )
    model = new_model(shape, tokenizer, seed=0).to(getattr(torch, request.param))
    found = Merge(root / "start", root / "adapter", root / "merged", request.param)
    model.save_pretrained(found.start)
    tokenizer.save_pretrained(found.start)
    adapt(model.float(), found.adapter)
    assert merge(found.start, found.adapter, found.merged) == request.param, (
        "stored as the start is"
    )
    return found


@pytest.fixture
def copied(made: Merge, tmp_path: Path) -> Merge:
    """Copies to spoil."""
    folders = [
        Path(shutil.copytree(folder, tmp_path / folder.name))
        for folder in (made.start, made.adapter, made.merged)
    ]
    return Merge(*folders, made.dtype)


def test_a_true_merge_passes_and_is_counted(made: Merge) -> None:
    layers = 2
    shares = ("update_kept", "weights_moved")
    assert {field: value for field, value in made.audit().items() if field not in shares} == {
        "tensors": 11 * layers + 2, "changed": 7 * layers, "identical": 4 * layers + 2, "targets": 7 * layers, "tied_head": True,
    }  # fmt: skip
    assert "lm_head.weight" not in load_file(made.merged / WEIGHTS)


def test_every_weight_is_the_formula_rounded_once(made: Merge) -> None:
    """W' = W + (alpha / r) B A in float32, then the start's dtype."""
    before, after, lora = (
        load_file(made.start / WEIGHTS),
        load_file(made.merged / WEIGHTS),
        load_file(made.adapter / ADAPTER),
    )
    for name in targeted(made.adapter):
        prefix = f"base_model.model.{name.removesuffix('.weight')}"
        delta = 8 / 4 * lora[f"{prefix}.lora_B.weight"] @ lora[f"{prefix}.lora_A.weight"]
        expected = (before[name].float() + delta).to(getattr(torch, made.dtype))
        torch.testing.assert_close(
            after[name], expected, atol=1e-6, rtol=1e-6 if made.dtype == "float32" else 2**-8
        )


def test_targets_come_from_the_adapter_s_own_tensors(made: Merge) -> None:
    assert len(targeted(made.adapter)) == 14
    assert {name.split(".")[-2] for name in targeted(made.adapter)} == set(PROJECTIONS)


def test_the_candidate_stands_alone_with_the_start_s_tokenizer(made: Merge) -> None:
    assert set(check_checkpoint(made.merged)) == set(check_checkpoint(made.start))
    assert not list(made.merged.glob("adapter*"))
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (made.merged / name).read_bytes() == (made.start / name).read_bytes()
    assert json.loads((made.merged / "config.json").read_text())["tie_word_embeddings"] is True
    loaded = AutoModelForCausalLM.from_pretrained(made.merged)
    assert loaded.lm_head.weight.data_ptr() == loaded.model.embed_tokens.weight.data_ptr()


def test_merging_again_replaces_what_was_there_with_the_same_bytes(copied: Merge) -> None:
    before = (copied.merged / WEIGHTS).read_bytes()
    (copied.merged / "model-00001-of-00002.safetensors").touch()
    merge(copied.start, copied.adapter, copied.merged)
    assert (copied.merged / WEIGHTS).read_bytes() == before
    assert not (copied.merged / "model-00001-of-00002.safetensors").exists()


def unmerged(tensors: Tensors, start: Tensors) -> None:
    tensors[TARGET] = start[TARGET]


def one_bit(tensors: Tensors, start: Tensors) -> None:
    raw = tensors[UNTOUCHED].view(torch.uint8)
    raw[0] ^= 1


def other_dtype(tensors: Tensors, start: Tensors) -> None:
    tensors[TARGET] = tensors[TARGET].half()


def same_values_other_dtype(tensors: Tensors, start: Tensors) -> None:
    tensors[UNTOUCHED] = tensors[UNTOUCHED].double()


def other_shape(tensors: Tensors, start: Tensors) -> None:
    tensors[TARGET] = tensors[TARGET].T.contiguous()


def missing(tensors: Tensors, start: Tensors) -> None:
    del tensors[UNTOUCHED]


def added(tensors: Tensors, start: Tensors) -> None:
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()


def not_finite(tensors: Tensors, start: Tensors) -> None:
    tensors[TARGET][0, 0] = torch.inf


def untargeted_nan(tensors: Tensors, start: Tensors) -> None:
    tensors[UNTOUCHED][0] = torch.nan


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (unmerged, f"{TARGET} did not change although the adapter targets it"),
        (one_bit, f"{UNTOUCHED} changed although nothing targets it"),
        (untargeted_nan, f"{UNTOUCHED} changed although nothing targets it"),
        (other_dtype, rf"{TARGET} is torch.float16 \(64, 32\), the start has"),
        (same_values_other_dtype, f"{UNTOUCHED} is torch.float64"),
        (other_shape, rf"{TARGET} is torch.* \(32, 64\), the start has torch.* \(64, 32\)"),
        (missing, f"tensor {UNTOUCHED} is stored in only one of start and merged"),
        (added, "tensor lm_head.weight is stored in only one"),
        (not_finite, f"{TARGET} holds values that are not finite"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_wrong_tensor_is_named(
    copied: Merge, change: Callable[[Tensors, Tensors], None], message: str
) -> None:
    start = load_file(copied.start / WEIGHTS)
    copied.spoil(lambda tensors: change(tensors, start))
    with pytest.raises(MergeError, match=f"{copied.merged}.*{message}"):
        copied.audit()


@pytest.mark.parametrize("part", ["A", "B"])
def test_an_unpaired_adapter_tensor_is_named(copied: Merge, part: str) -> None:
    copied.spoil(
        lambda tensors: tensors.pop(
            f"base_model.model.{TARGET.removesuffix('.weight')}.lora_{part}.weight"
        ),
        "adapter",
    )
    with pytest.raises(MergeError, match=f"{TARGET} has not exactly one A and one B"):
        copied.audit()


def test_a_target_that_the_start_does_not_store_is_named(copied: Merge) -> None:
    def stray(tensors: Tensors) -> None:
        for part in "AB":
            tensors[f"base_model.model.model.layers.9.mlp.up_proj.lora_{part}.weight"] = (
                torch.zeros(2, 2)
            )

    copied.spoil(stray, "adapter")
    with pytest.raises(
        MergeError,
        match=r"targets model\.layers\.9\.mlp\.up_proj\.weight, which the start does not store",
    ):
        copied.audit()


def test_an_adapter_of_fewer_projections_must_leave_the_others(
    copied: Merge, tokenizer: PreTrainedTokenizerFast
) -> None:
    shutil.rmtree(copied.adapter)
    adapt(
        AutoModelForCausalLM.from_pretrained(copied.start, dtype=torch.float32),
        copied.adapter,
        targets=("q_proj", "v_proj"),
    )
    with pytest.raises(
        MergeError,
        match=r"model\.layers\.0\.mlp\.down_proj\.weight changed although nothing targets it",
    ):
        copied.audit()
    merge(copied.start, copied.adapter, copied.merged)
    assert copied.audit()["changed"] == 4


def shrink(made: Merge, factor: float) -> None:
    """An update `factor` times as large, merged."""
    made.spoil(
        lambda tensors: [
            tensor.mul_(factor) for name, tensor in tensors.items() if "lora_B" in name
        ],
        "adapter",
    )
    merge(made.start, made.adapter, made.merged)


def test_an_update_far_above_the_rounding_is_kept(made: Merge) -> None:
    assert made.audit()["update_kept"] == pytest.approx(1, abs=0.01)
    assert made.audit()["weights_moved"] > 0.9


def test_an_update_below_the_rounding_is_lost_and_said_to_be(copied: Merge) -> None:
    """B of 5e-7: far below half a unit in the last place of most bfloat16 weights, far above it in float32."""
    shrink(copied, 1e-5)
    if copied.dtype == "float32":
        assert copied.audit()["update_kept"] == pytest.approx(1, abs=0.05)
    else:
        with pytest.raises(MergeError, match="did not change although the adapter targets it"):
            copied.audit()


def test_what_evaluation_rounds_away_counts_as_lost(copied: Merge) -> None:
    """A start stored in float32 whose numbers are bfloat16's, as a converted checkpoint's: merged in float32, evaluated in bfloat16."""
    copied.spoil(
        lambda tensors: [tensor.copy_(tensor.to(torch.bfloat16)) for tensor in tensors.values()],
        "start",
    )
    shrink(copied, 3e-4)
    lost = audit(copied.start, copied.adapter, copied.merged, "bfloat16")
    assert lost["update_kept"] < 0.5
    assert lost["weights_moved"] < 0.2
    if copied.dtype == "float32":
        assert copied.audit()["update_kept"] == pytest.approx(1, abs=0.01)


def test_a_part_of_an_update_is_measured_as_a_part(copied: Merge) -> None:
    """Half of every change taken back."""

    def halve(tensors: Tensors) -> None:
        start = load_file(copied.start / WEIGHTS)
        for name in targeted(copied.adapter):
            tensors[name] = ((tensors[name].float() + start[name].float()) / 2).to(
                tensors[name].dtype
            )

    copied.spoil(halve)
    assert copied.audit()["update_kept"] == pytest.approx(0.5, abs=0.01)


def test_weights_stored_in_two_dtypes_are_refused(copied: Merge) -> None:
    other = torch.bfloat16 if copied.dtype == "float32" else torch.float32
    copied.spoil(lambda tensors: tensors.update({TARGET: tensors[TARGET].to(other)}), "start")
    with pytest.raises(
        MergeError,
        match=r"targeted weights are stored as \['bfloat16', 'float32'\], expected one of",
    ):
        merge(copied.start, copied.adapter, copied.merged)


def test_logits_of_a_true_merge_agree(made: Merge) -> None:
    gap = logit_gap(made.start, made.adapter, made.merged, CONTEXTS, made.dtype)
    assert gap <= (1e-5 if made.dtype == "float32" else 0.05)
    assert gap < LOGIT_TOLERANCE[made.dtype]


def test_a_scaled_adapter_is_refused(copied: Merge) -> None:
    """As if alpha were lost: every tensor of the audit still has changed, only the logits tell."""
    config = copied.adapter / "adapter_config.json"
    settings = json.loads(config.read_text())
    config.write_text(json.dumps(settings | {"lora_alpha": 80 * settings["lora_alpha"]}))
    copied.audit()
    with pytest.raises(
        MergeError, match=rf"logits differ from base \+ adapter by .*, allowed .* in {copied.dtype}"
    ):
        logit_gap(copied.start, copied.adapter, copied.merged, CONTEXTS, copied.dtype)


def test_logits_that_are_not_finite_are_refused(copied: Merge) -> None:
    copied.spoil(lambda tensors: tensors[TARGET].fill_(torch.nan))
    with pytest.raises(MergeError, match="by nan"):
        logit_gap(copied.start, copied.adapter, copied.merged, CONTEXTS, copied.dtype)
