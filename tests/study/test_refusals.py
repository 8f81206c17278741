"""What cannot become a study is refused before its first job, by a message that names the key and what was found."""

import json
from pathlib import Path

import pytest

from agentrl.evidence.section import ConfigError
from agentrl.study.config import Study
from agentrl.study.refusals import TRIGGERS, blind, check_start


def starting(study: Study, start: object) -> Study:
    """The demo study with a start of its own."""
    return study.model_copy(
        update={"model": study.model.model_copy(update={"start": str(start)}), "demo_policy": None}
    )


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A folder with the configuration of a checkpoint whose context is long enough."""
    (tmp_path / "start").mkdir()
    (tmp_path / "start/config.json").write_text(json.dumps({"max_position_embeddings": 4096}))
    return tmp_path / "start"


def test_a_start_that_is_not_there_is_named(study: Study, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError,
        match=r"model\.start: no folder '.*elsewhere'; give the folder of a checkpoint, or a hub id",
    ):
        check_start(starting(study, tmp_path / "elsewhere"), tmp_path / "recorded")


def test_a_start_that_was_recorded_may_be_gone(study: Study, tmp_path: Path) -> None:
    (tmp_path / "manifest.json").touch()
    check_start(starting(study, tmp_path / "elsewhere"), tmp_path)


@pytest.mark.parametrize("start", ["Qwen/Qwen3-1.7B", "owner/name"])
def test_a_hub_id_is_the_job_s_to_fetch(study: Study, tmp_path: Path, start: str) -> None:
    check_start(starting(study, start), tmp_path)


def test_a_folder_without_a_checkpoint_is_named(study: Study, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"model\.start: .*config\.json is missing"):
        check_start(starting(study, tmp_path), tmp_path / "recorded")


@pytest.mark.parametrize("key", ["protocol.budget", "retention.max_tokens"])
def test_more_tokens_than_the_context_are_named(
    study: Study, checkpoint: Path, tmp_path: Path, key: str
) -> None:
    check_start(starting(study, checkpoint), tmp_path)
    tokens = study.protocol.budget if key == "protocol.budget" else study.retention.max_tokens
    (checkpoint / "config.json").write_text(json.dumps({"max_position_embeddings": tokens}))
    changed = starting(study, checkpoint)
    if key != "protocol.budget":
        changed = changed.model_copy(
            update={"protocol": changed.protocol.model_copy(update={"budget": 1})}
        )
    with pytest.raises(
        ConfigError,
        match=rf"{key} is {tokens} tokens behind the prompt, the start's whole context {tokens}",
    ):
        check_start(changed, tmp_path)


def test_a_run_that_looks_away_is_refused() -> None:
    assert blind(TRIGGERS) is None
    assert str(blind(["mtime"])).startswith(
        "--rerun-triggers leaves out code, input, params, software-env: an edited configuration"
    )
