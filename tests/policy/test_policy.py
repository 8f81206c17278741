"""Policy: a checkpoint that cannot serve is refused before a weight is read, with the file and what to do."""

import json
import pickle
import shutil
from pathlib import Path

import huggingface_hub.constants
import pytest
import torch
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from agentrl.evidence.files import ManifestError, write_json
from agentrl.evidence.stage import hash_files
from agentrl.policy.checkpoint import (
    CHECKPOINT,
    PolicyError,
    check_checkpoint,
    check_policy,
    locate,
)
from agentrl.policy.loading import load_model
from agentrl.policy.settings import Model
from agentrl.rollout.chat import ChatProtocol, ProtocolError, load_tokenizer

CPU = Model(start=None, dtype="float32", device="cpu", threads=1)


@pytest.fixture(scope="module")
def saved(
    tmp_path_factory: pytest.TempPathFactory,
    tiny_model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
) -> Path:
    """A sound checkpoint; do not edit."""
    folder = tmp_path_factory.mktemp("saved")
    tiny_model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def checkpoint(tmp_path: Path, saved: Path) -> Path:
    """A copy to spoil."""
    return Path(shutil.copytree(saved, tmp_path / CHECKPOINT))


def start(where: object, revision: str | None = None) -> Model:
    return CPU.model_copy(update={"start": str(where), "revision": revision})


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty hub cache and no network."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "hub"


def test_a_local_folder_is_taken_as_it_is(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(checkpoint.parent)
    assert locate(start(CHECKPOINT)) == checkpoint.resolve()
    assert locate(start(checkpoint)) == checkpoint.resolve()


def test_a_revision_of_a_local_folder_is_refused(checkpoint: Path) -> None:
    with pytest.raises(
        PolicyError,
        match=r"model\.revision: 'abc' is set but model\.start '.*' is a local folder; set it to null",
    ):
        locate(start(checkpoint, revision="abc"))


@pytest.mark.parametrize("name", ["/no/such", "./models", "models", "a/b/c", "../up/one"])
def test_what_is_neither_folder_nor_hub_id_is_refused(offline: Path, name: str) -> None:
    with pytest.raises(
        PolicyError, match="give the folder of a checkpoint, or a hub id as owner/name"
    ):
        locate(start(name))


@pytest.mark.parametrize("name", ["owner/name", "models/qwen3-1.7b-german-sft", "not a/valid id"])
def test_a_hub_id_without_network_is_refused_by_name(offline: Path, name: str) -> None:
    with pytest.raises(
        PolicyError, match=f"'{name}' is no local folder and cannot be fetched from the hub"
    ):
        locate(start(name))


def test_a_hub_id_in_the_cache_is_used_offline(offline: Path, saved: Path) -> None:
    revision = "0123456789" * 4
    snapshot = offline / "models--owner--name" / "snapshots" / revision
    shutil.copytree(saved, snapshot)
    assert locate(start("owner/name", revision)) == snapshot


def test_a_sound_checkpoint_lists_its_own_files_only(checkpoint: Path) -> None:
    (checkpoint / "training_args.bin").write_bytes(pickle.dumps({}))
    (checkpoint / "README.md").touch()
    found = check_checkpoint(checkpoint)
    assert found == sorted(found)
    assert {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
    } <= set(found)
    assert not {"training_args.bin", "README.md"} & set(found)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_missing_file_is_named(checkpoint: Path, name: str) -> None:
    (checkpoint / name).unlink()
    with pytest.raises(PolicyError, match=f"{checkpoint}: no .*{name}"):
        check_checkpoint(checkpoint)


def test_no_folder_at_all_is_named(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match=f"{tmp_path / 'none'}: no config.json"):
        check_checkpoint(tmp_path / "none")


@pytest.mark.parametrize("keep", [0, 4, 100, 0.5, -1], ids=str)
def test_half_written_weights_are_named(checkpoint: Path, keep: float) -> None:
    path = checkpoint / "model.safetensors"
    content = path.read_bytes()
    path.write_bytes(
        content[: int(keep * len(content))] if isinstance(keep, float) else content[:keep]
    )
    with pytest.raises(
        PolicyError,
        match=rf"{path}: incomplete or damaged \(.*\); copy or save the checkpoint again",
    ):
        check_checkpoint(checkpoint)


def test_pickled_weights_are_refused_with_the_remedy(checkpoint: Path) -> None:
    (checkpoint / "model.safetensors").rename(checkpoint / "pytorch_model.bin")
    with pytest.raises(
        PolicyError,
        match=r"pytorch_model\.bin: pickled weights are refused, convert them to safetensors",
    ):
        check_checkpoint(checkpoint)
    with pytest.raises(OSError, match="safetensors"):
        load_model(checkpoint, CPU)


def test_shards_are_found_through_the_index_and_all_checked(
    checkpoint: Path, tiny_model: Qwen3ForCausalLM
) -> None:
    (checkpoint / "model.safetensors").unlink()
    tiny_model.save_pretrained(checkpoint, max_shard_size="200KB")
    shards = sorted(path.name for path in checkpoint.glob("model-*.safetensors"))
    assert len(shards) > 1
    assert {*shards, "model.safetensors.index.json"} <= set(check_checkpoint(checkpoint))
    (checkpoint / shards[-1]).unlink()
    with pytest.raises(PolicyError, match=f"{checkpoint / shards[-1]}: incomplete or damaged"):
        check_checkpoint(checkpoint)


def test_a_tokenizer_without_template_cannot_carry_the_protocol(checkpoint: Path) -> None:
    ChatProtocol(load_tokenizer(checkpoint))
    (checkpoint / "chat_template.jinja").unlink()
    with pytest.raises(ProtocolError, match=f"{checkpoint}: no chat template"):
        ChatProtocol(load_tokenizer(checkpoint))


def test_cuda_on_a_worker_without_gpu_is_refused(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(
        PolicyError,
        match=r"model\.device: 'cuda' is configured but this worker sees no GPU; .*set model\.device: cpu",
    ):
        load_model(saved, CPU.model_copy(update={"device": "cuda"}))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_are_loaded_in_the_configured_dtype_and_eval_mode(
    saved: Path, tiny_model: Qwen3ForCausalLM, dtype: str
) -> None:
    loaded = load_model(saved, CPU.model_copy(update={"dtype": dtype}))
    assert loaded.dtype == getattr(torch, dtype)
    assert not loaded.training
    assert torch.equal(loaded.lm_head.weight, tiny_model.lm_head.weight.to(loaded.dtype))


def record(folder: Path, names: list[str]) -> Path:
    write_json(folder / "manifest.json", {"outputs": hash_files(folder, names), "steps": 0})
    return folder / "manifest.json"


def test_a_policy_is_its_manifest_and_checked_files(checkpoint: Path) -> None:
    names = [f"{CHECKPOINT}/{name}" for name in check_checkpoint(checkpoint)]
    manifest = record(checkpoint.parent, names)
    assert check_policy(manifest) == (checkpoint, json.loads(manifest.read_text()))
    weights = checkpoint / "model.safetensors"
    changed = bytearray(weights.read_bytes())
    changed[-1] ^= 1
    weights.write_bytes(changed)
    with pytest.raises(ManifestError, match=f"{weights}: changed since {manifest}"):
        check_policy(manifest)


def test_another_stage_is_no_policy(tmp_path: Path) -> None:
    (tmp_path / "episodes.jsonl").touch()
    with pytest.raises(
        ManifestError, match="records no checkpoint under model/; it is not a policy's manifest"
    ):
        check_policy(record(tmp_path, ["episodes.jsonl"]))
