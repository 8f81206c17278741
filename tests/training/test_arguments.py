"""What enters a loss, an optimizer or the order of the data is set by us: defaults are known by name, settings reach where they act."""

import inspect
import json
from collections.abc import Callable
from dataclasses import MISSING, Field, asdict, fields, is_dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpo_config_table
import pytest
import torch
from peft import LoraConfig, get_peft_model
from raw_studies import PILOT_RAW
from transformers import TrainingArguments
from transformers.optimization import (
    get_constant_schedule_with_warmup,
    get_cosine_schedule_with_warmup,
    get_linear_schedule_with_warmup,
)
from trl import GRPOConfig

from agentrl.evidence.files import write_json
from agentrl.evidence.section import validate
from agentrl.policy import adapter
from agentrl.study.config import Study, validate_study
from agentrl.training import arguments, grpo, supervised
from agentrl.training.settings import Arm, TrainingSettings
from agentrl.verify import arguments as checked
from agentrl.verify.chain import _overridden

DEFAULTS: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "data/defaults.json").read_text(encoding="utf-8")
)
"""Whose argument -> those that we leave alone -> their default, kept by hand."""


class Told(Exception):  # noqa: N818 - it carries what a trainer was about to be told
    """The arguments, caught where they are handed over."""

    def __init__(self, **given: Any) -> None:
        super().__init__()
        self.given = given


def caught(module: Any, name: str, call: Callable[[], object]) -> dict[str, Any]:
    """The keyword arguments that `call` hands to a class of a module."""

    def tell(**given: Any) -> None:
        raise Told(**given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, name, tell)
        with pytest.raises(Told) as found:
            call()
    return dict(found.value.given)


def grpo_given(study: Study) -> dict[str, Any]:
    recorder: Any = SimpleNamespace(work=Path("work"), seed=3, table={})
    settings = TrainingSettings(**study.training.model_dump(exclude={"seeds"}))
    return caught(
        grpo,
        "GRPOConfig",
        lambda: grpo.trainer(None, None, recorder, settings, study.decoding, 160, study.model),
    )  # type: ignore[arg-type]


def supervised_given() -> dict[str, Any]:
    schedule: Any = SimpleNamespace(steps=10, batch_size=2, learning_rate=0.1)
    call = partial(supervised.train, None, None, [], schedule, 3, Path("work"), use_cpu=True)  # type: ignore[arg-type]
    return caught(supervised, "TrainingArguments", call)


def lora_given(study: Study) -> dict[str, Any]:
    return caught(adapter, "LoraConfig", lambda: adapter.lora_config(study.training.lora))


def default(field: Field[Any]) -> Any:
    """A dataclass field's default as JSON says it."""
    value = field.default if field.default is not MISSING else field.default_factory()  # type: ignore[misc]
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value


def left_alone(kind: type, given: dict[str, Any]) -> dict[str, Any]:
    return {field.name: default(field) for field in fields(kind) if field.name not in given}


def unsaid(function: Callable[..., object], given: set[str]) -> dict[str, Any]:
    """Defaults of a function's parameters that its caller does not pass."""
    return {
        name: p.default
        for name, p in inspect.signature(function).parameters.items()
        if p.default is not p.empty and name not in given
    }


KINDS: dict[str, Callable[[Study], dict[str, Any]]] = {
    "GRPOConfig": lambda study: left_alone(GRPOConfig, grpo_given(study)),
    "TrainingArguments": lambda study: left_alone(TrainingArguments, supervised_given()),
    "LoraConfig": lambda study: left_alone(LoraConfig, lora_given(study)),
    "AdamW": lambda study: unsaid(
        torch.optim.AdamW, {"lr", "betas", "eps", "weight_decay", "fused"}
    ),
    "get_peft_model": lambda study: unsaid(get_peft_model, set()),
    "linear schedule": lambda study: unsaid(get_linear_schedule_with_warmup, set()),
    "cosine schedule": lambda study: unsaid(get_cosine_schedule_with_warmup, set()),
    "constant schedule": lambda study: unsaid(get_constant_schedule_with_warmup, set()),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_defaults_we_leave_alone_are_those_we_know(kind: str, study: Study) -> None:
    """An upgrade that adds, drops or changes one fails here: set the argument in `arguments`, or write down the new default."""
    found, known = KINDS[kind](study), DEFAULTS[kind]
    assert sorted(found) == sorted(known), "a name came or went"
    assert found == known


def test_every_default_is_kept() -> None:
    assert DEFAULTS.keys() == KINDS.keys()


def test_nothing_is_set_that_trl_does_not_know(study: Study) -> None:
    names = {field.name for field in fields(GRPOConfig)}
    assert arguments.FIXED.keys() | arguments.MACHINE.keys() <= names
    assert not arguments.FIXED.keys() & arguments.configured(*told(study)).keys(), (
        "either fixed or configured"
    )


def told(study: Study, **changes: Any) -> tuple[Any, ...]:
    settings = validate(
        TrainingSettings.part(study.training.model_dump(mode="json")) | changes, TrainingSettings
    )
    return settings, study.decoding, study.protocol.budget, study.model, 3


OTHER: dict[str, Any] = {
    "steps": 5,
    "group_size": 2,
    "batch_size": 6,
    "learning_rate": 3e-4,
    "lr_schedule": "cosine",
    "warmup_steps": 2,
    "kl": 0.07,
    "kl_estimator": "k3_unbiased",
    "max_grad_norm": 0.3,
    "loss_type": "dr_grpo",
    "scale_rewards": "none",
    "importance_level": "sequence",
    "clip": {"low": 0.1, "high": 0.3},
    "mask_truncated": True,
    "entropy_quantile": 0.2,
    "optimizer": {
        "name": "adamw_torch",
        "beta1": 0.8,
        "beta2": 0.95,
        "epsilon": 1e-6,
        "weight_decay": 0.1,
    },
    "lora": {
        "r": 4,
        "alpha": 8,
        "targets": ["q_proj", "up_proj"],
        "dropout": 0.1,
        "init": "gaussian",
    },
    "gradient_checkpointing": True,
    "checkpoint_every": 3,
}
"""Every setting, and not the shipped value."""


def test_every_setting_has_another_value(study: Study) -> None:
    assert OTHER.keys() == TrainingSettings.model_fields.keys()
    now = TrainingSettings.part(study.training.model_dump(mode="json"))
    assert not [name for name, value in OTHER.items() if value == now[name]]


def really(study: Study, work: Path, **changes: Any) -> dict[str, dict[str, Any]]:
    """Arguments as TRL and PEFT hold them after their own defaults, conversions and checks."""
    settings, decoding, budget, device, seed = told(study, **changes)
    given = {**arguments.FIXED, **arguments.configured(settings, decoding, budget, device, seed)}
    return {
        "grpo_config": arguments.recorded(
            GRPOConfig(output_dir=str(work), report_to="none", **given), arguments.MACHINE
        ),
        "lora_config": arguments.recorded(
            adapter.lora_config(settings.lora), arguments.LORA_MACHINE
        ),
    }


@pytest.mark.parametrize("changes", [{}, OTHER], ids=["shipped", "other"])
def test_verification_derives_what_trl_and_peft_were_told(
    study: Study, tmp_path: Path, changes: dict[str, Any]
) -> None:
    settings, decoding, *_ = told(study, **changes)
    config = {
        "training": settings,
        "decoding": decoding,
        "model": study.model,
        "protocol": study.protocol,
    }
    plain = {name: section.model_dump(mode="json") for name, section in config.items()} | {
        "seed": 3
    }
    found = really(study, tmp_path, **changes)
    expected = checked.trainer(plain)
    assert {name: found["grpo_config"][name] for name in expected} == expected
    expected = checked.lora(plain["training"]["lora"])
    assert {name: found["lora_config"][name] for name in expected} == expected


@pytest.mark.parametrize("name", sorted(OTHER))
def test_every_setting_reaches_trl_or_peft(study: Study, tmp_path: Path, name: str) -> None:
    """And shows in the record."""
    changes = {name: 12 if name == "batch_size" else OTHER[name]}  # groups of four fill it
    assert really(study, tmp_path, **changes) != really(study, tmp_path)


def test_the_record_is_the_same_bytes_in_any_folder(study: Study, tmp_path: Path) -> None:
    one, other = (
        json.dumps(really(study, tmp_path / name), sort_keys=True, allow_nan=False)
        for name in ("a", "b")
    )
    assert one == other
    assert str(tmp_path) not in one


def test_all_arguments_are_recorded_but_those_of_the_machine(study: Study, tmp_path: Path) -> None:
    found = really(study, tmp_path)
    assert (
        found["grpo_config"].keys()
        == {field.name for field in fields(GRPOConfig)} - arguments.MACHINE.keys()
    )
    assert (
        found["lora_config"].keys()
        == {field.name for field in fields(LoraConfig)} - arguments.LORA_MACHINE.keys()
    )


def test_what_json_cannot_say_is_named() -> None:
    with pytest.raises(TypeError, match=r"argument optim_args holds <object"):
        arguments.recorded(TrainingArguments(output_dir="x", use_cpu=True, optim_args=object()), ())  # type: ignore[arg-type]


def test_an_arm_s_nested_overrides_are_merged_by_verification_as_by_training(
    study: Study, tmp_path: Path
) -> None:
    arm = {
        "reward": "shaped",
        "training": {
            "kl": 0.5,
            "optimizer": {"beta2": 0.95},
            "clip": {"high": 0.28},
            "lora": {"init": "gaussian"},
        },
    }
    base = TrainingSettings.part(study.training.model_dump(mode="json"))
    write_json(tmp_path / "training.json", base)
    write_json(tmp_path / "arm-a.json", arm)
    settings = validate(arm, Arm).settings(validate(base, TrainingSettings))
    assert _overridden(tmp_path, "a") == settings.model_dump(mode="json")
    assert (
        settings.optimizer.beta2,
        settings.optimizer.beta1,
        settings.clip.low,
        settings.clip.high,
    ) == (0.95, 0.9, 0.2, 0.28)


def test_the_kept_table_shows_what_grpo_is_told_and_the_installed_defaults() -> None:
    """`tests/grpo_config_table.py` makes it anew; the column of TRL 0.29.0 needs that version's source and stays as it was read."""
    kept = {}
    for line in (
        (grpo_config_table.ROOT / "benchmarks/training/grpo-config.md")
        .read_text(encoding="utf-8")
        .splitlines()
    ):
        if (
            line.startswith("| ")
            and len(cells := [cell.strip() for cell in line.strip("|").split("|")]) == 5
            and cells[0] != "argument"
        ):
            kept[cells[0]] = cells[1:]
    told, now = grpo_config_table.ours(validate_study(PILOT_RAW)), grpo_config_table.pinned()
    assert told.keys() <= kept.keys()
    for name, (ours, recipe, installed, note) in kept.items():
        if name != "---":
            assert (
                grpo_config_table.row(name, told, {name: recipe}, now)
                == f"| {name} | {ours} | {recipe} | {installed} | {note} |"
            )
    assert kept["use_bias_correction_kl"][:3] == ["false", "false", "true"]
