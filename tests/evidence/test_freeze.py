"""Freeze: what a stage consumes is what was frozen, or the change is refused by name with both digests."""

import hashlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from peft import LoraConfig, get_peft_model
from peft.tuners.lora import LoraLayer
from transformers import Trainer, get_scheduler
from transformers.trainer_optimizer import has_mixed_dtensor
from trl import GRPOConfig, GRPOTrainer
from trl.kernels import ChunkedLogProbFunction
from trl.trainer.utils import RepeatSampler

from agentrl.evidence import freeze as module
from agentrl.evidence.files import ManifestError, read_json, write_json
from agentrl.evidence.freeze import UPSTREAM, FreezeError, Frozen, freeze, present, upstream
from agentrl.evidence.section import ConfigError
from agentrl.rollout.settings import Decoding
from agentrl.study.config import Study
from agentrl.study.sections import sections
from agentrl.training.settings import TrainingSettings

TOKENIZER = ["tokenizer.json", "chat_template.jinja"]
CODE = "fakelib/trainer.py"


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What a stage is given: tasks, a checkpoint folder, and an installed package that must not be imported."""
    for name, text in {
        "tasks.jsonl": "{}\n",
        "model/tokenizer.json": "{}",
        "model/chat_template.jinja": "{{ x }}",
        "model/model.safetensors": "weights",
        "lib/fakelib/__init__.py": "raise RuntimeError('imported')",
        CODE.replace("fakelib", "lib/fakelib"): "advantage = 0",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path / "lib")
    monkeypatch.setitem(UPSTREAM, "train", (CODE,))
    return tmp_path


@pytest.fixture
def frozen(given: Path, study: Study) -> Frozen:
    config = {name: sections(study)[name] for name in ("training", "decoding")}
    folders = {"tokenizer": (given / "model", TOKENIZER)}
    write_json(
        given / "train.json", freeze("train", {"data": given / "tasks.jsonl"}, folders, config)
    )
    return Frozen(given / "train.json")


def check(frozen: Frozen, given: Path) -> None:
    frozen.check({"data": given / "tasks.jsonl"}, {"tokenizer": given / "model"})


def test_unchanged_inputs_pass_and_what_is_not_frozen_does_not_matter(
    frozen: Frozen, given: Path
) -> None:
    check(frozen, given)
    (given / "model/model.safetensors").write_text("a candidate's weights")
    check(frozen, given)


def test_content_is_digests_and_sections_without_paths(
    frozen: Frozen, given: Path, study: Study
) -> None:
    assert read_json(given / "train.json") == {
        "version": 1,
        "stage": "train",
        "files": {"data": digest(given / "tasks.jsonl")},
        "folders": {"tokenizer": {name: digest(given / "model" / name) for name in TOKENIZER}},
        "upstream": {CODE: digest(given / "lib" / CODE)},
        "config": {name: sections(study)[name] for name in ("training", "decoding")},
    }
    assert str(given) not in (given / "train.json").read_text()


@pytest.mark.parametrize(
    ("name", "error", "label"),
    [
        ("tasks.jsonl", FreezeError, r"data \({path}\): differs from {freeze}"),
        ("model/tokenizer.json", ManifestError, r"{path}: changed since {freeze}"),
        ("model/chat_template.jinja", ManifestError, r"{path}: changed since {freeze}"),
        (f"lib/{CODE}", FreezeError, rf"installed {CODE}: differs from {{freeze}}"),
    ],
)
def test_a_change_is_refused_by_name_with_both_digests(
    frozen: Frozen, given: Path, name: str, error: type[ValueError], label: str
) -> None:
    path = given / name
    expected = digest(path)
    path.write_text(path.read_text() + " ")
    with pytest.raises(error) as caught:
        check(frozen, given)
    assert re.match(label.format(path=path, freeze=given / "train.json"), str(caught.value))
    assert f"expected sha256 {expected}, found {digest(path)}" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("tasks.jsonl", "{path}.*found no file"),
        ("model/tokenizer.json", "{path}: missing"),
        (f"lib/{CODE}", f"installed {CODE}.*found no file"),
    ],
)
def test_a_missing_file_is_refused_by_name(
    frozen: Frozen, given: Path, name: str, found: str
) -> None:
    (given / name).unlink()
    with pytest.raises((FreezeError, ManifestError), match=found.format(path=given / name)):
        check(frozen, given)


def test_a_package_that_is_gone_is_named(
    frozen: Frozen, given: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        FreezeError, match=r"package 'fakelib' is not installed, but fakelib/trainer\.py is frozen"
    ):
        check(frozen, given)


def test_sections_come_back_as_they_were(frozen: Frozen, study: Study) -> None:
    assert frozen.section("decoding", Decoding) == study.decoding
    settings = frozen.section("training", TrainingSettings)
    assert settings.model_dump() == study.training.model_dump(exclude={"seeds"})


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda c: c["decoding"].update(temprature=0.6), "temprature: unknown key"),
        (lambda c: c["decoding"].update(top_k="20"), 'top_k: .*found "20"'),
        (lambda c: c["decoding"].pop("seed"), "seed: missing"),
    ],
)
def test_a_spoilt_section_is_refused_by_file_and_key(
    given: Path, frozen: Frozen, spoil: Callable[[dict], None], message: str
) -> None:
    content = read_json(given / "train.json")
    spoil(content["config"])
    write_json(given / "train.json", content)
    with pytest.raises(
        ConfigError, match=rf"(?s){given / 'train.json'}, section decoding is not valid.*{message}"
    ):
        Frozen(given / "train.json").section("decoding", Decoding)


@pytest.mark.parametrize("stage", ["train", "agent-dev", "agent-test", "retention"])
def test_real_upstream_files_are_installed(stage: str) -> None:
    found = upstream(stage)
    assert tuple(found) == UPSTREAM[stage.split("-")[0]]
    assert all(re.fullmatch("[0-9a-f]{64}", value) for value in found.values())


def defining(thing: Any) -> set[str]:
    """Files that say what a class or function does, as `UPSTREAM` names them: of a class, those of its bases in the same libraries too."""
    modules = [part.__module__ for part in (thing.__mro__ if isinstance(thing, type) else [thing])]
    return {
        f"{name.replace('.', '/')}.py"
        for name in modules
        if name.split(".")[0] in ("trl", "transformers", "peft")
    }


@pytest.mark.parametrize(
    "thing",
    [
        *(GRPOConfig, GRPOTrainer, RepeatSampler, ChunkedLogProbFunction),
        *(Trainer, get_scheduler, has_mixed_dtensor),
        *(LoraConfig, LoraLayer, get_peft_model),
    ],
    ids=lambda thing: thing.__name__,
)
def test_a_training_s_freeze_covers_what_defines_its_loss_and_its_optimizer(thing: Any) -> None:
    """Defaults included: of TRL 1.16, `use_bias_correction_kl` turned by one of them is another gradient."""
    covered = {name for name in defining(thing) if not name.startswith(MIXINS)}
    assert covered
    assert covered <= set(UPSTREAM["train"])


MIXINS = ("transformers/utils/hub.py", "peft/tuners/tuners_utils.py")
"""Bases that decide nothing: pushing to a hub, bookkeeping of adapters' names."""


def test_only_present_files_are_listed(given: Path) -> None:
    assert present(given / "model", ["vocab.json", *TOKENIZER, "merges.txt"]) == TOKENIZER
