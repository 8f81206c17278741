"""Baselines that are taken over: equal ones become this study's evidence, unequal ones are refused by the name of what differs."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from micro_study import snakemake

from agentrl.evaluation import recorded, retention
from agentrl.evaluation.adoption import AdoptionError, Earlier
from agentrl.evaluation.recorded import Import, RecordedError
from agentrl.evaluation.retention import Item, RetentionError
from agentrl.evaluation.settings import Retention
from agentrl.evidence.difference import first_difference
from agentrl.evidence.files import ManifestError, dump, read_json
from agentrl.evidence.hashing import sha256
from agentrl.evidence.section import ConfigError, merge, validate
from agentrl.judgement import comparison
from agentrl.report.summary import RECORDED_LIMIT
from agentrl.rollout.chat import ChatProtocol, load_tokenizer
from agentrl.study.config import validate_study
from agentrl.study.sections import check_taken_over
from agentrl.study.strictyaml import parse_yaml, read_yaml, retype
from agentrl.verify.audit import verify

ROOT = Path(__file__).resolve().parents[2]
BASELINE = "policies/baseline"
RECORDED = "recorded-sft.json"
"""Where the tests keep their recorded baseline, beside Snakefile."""
Change = Callable[[Any], object]


def rewrite(path: Path, content: object) -> None:
    """Replace a file; never write through a hard link into the shared study."""
    path.unlink(missing_ok=True)
    path.write_text(content if isinstance(content, str) else dump(content), encoding="utf-8")


def edit(path: Path, change: Change) -> None:
    content = read_json(path)
    change(content)
    rewrite(path, content)


def put(path: str, value: object) -> Change:
    """Set a path whose keys are separated by `>`."""

    def change(content: Any) -> None:
        *parents, last = [int(part) if part.isdecimal() else part for part in path.split(">")]
        for part in parents:
            content = content[part]
        content[last] = value

    return change


def answer_rows(study: Path) -> list[dict[str, Any]]:
    return [
        json.loads(line)
        for line in (study / BASELINE / "retention/answers.jsonl")
        .read_text(encoding="utf-8")
        .splitlines()
    ]


def sft_record(study: Path, **changes: object) -> dict[str, Any]:
    """What an SFT run would have written about the start policy of this study."""
    outputs, freeze = (
        read_json(study / "start/manifest.json")["outputs"],
        read_json(study / "freeze/retention.json"),
    )
    tokenizer, section = freeze["folders"]["tokenizer"], freeze["config"]["retention"]
    model = {
        name.removeprefix("model/"): digest
        for name, digest in outputs.items()
        if name.startswith("model/")
    }
    return {
        "format": recorded.FORMAT,
        "checkpoint": {name: digest for name, digest in model.items() if name not in tokenizer},
        "tokenizer": tokenizer,
        **{key: section[key] for key in ("system", "prompt", "decoding", "max_tokens")},
        "engine": "transformers",
        "answers": [{"item": row["item"], "ids": row["ids"]} for row in answer_rows(study)],
    } | changes


@pytest.fixture
def study(micro: Path, tmp_path: Path) -> Path:
    """A hard-linked copy of the finished study."""
    return Path(shutil.copytree(micro / "results/micro", tmp_path / "study", copy_function=os.link))


@pytest.fixture(scope="module")
def micro_chat(micro: Path) -> ChatProtocol:
    return ChatProtocol(load_tokenizer(micro / "results/micro/start/tokenizer"))


@pytest.fixture
def imported(
    study: Path, tmp_path: Path, micro_chat: ChatProtocol
) -> Callable[..., list[retention.Answer]]:
    """Import a changed record into the study."""

    def run(change: Change = lambda _: None) -> list[retention.Answer]:
        content = sft_record(study)
        change(content)
        rewrite(tmp_path / RECORDED, content)
        start, frozen = (
            read_json(study / "start/manifest.json"),
            read_json(study / "freeze/retention.json"),
        )
        items = retention.read_items(study / "retention/items.jsonl")
        return Import(tmp_path / RECORDED, start, frozen, items, micro_chat).answers("transformers")

    return run


# The format


def test_recorded_ids_become_the_answers_an_evaluation_would_have_written(
    study: Path, imported: Callable[..., Any]
) -> None:
    expected = [{**row, "logprobs": None} for row in answer_rows(study)]
    assert [json.loads(json.dumps(asdict(answer))) for answer in imported()] == expected
    assert (
        retention.measures(imported(), 8)
        == read_json(study / BASELINE / "retention/manifest.json")["counts"]
    )


def test_logprobs_and_prompt_ids_may_be_given(study: Path, imported: Callable[..., Any]) -> None:
    rows = answer_rows(study)
    answers = imported(
        lambda r: r.update(
            answers=[
                {key: row[key] for key in ("item", "ids", "logprobs", "prompt_ids")} for row in rows
            ]
        )
    )
    assert [json.loads(json.dumps(asdict(answer))) for answer in answers] == rows


def doubled(record: dict[str, Any]) -> None:
    record["answers"][1] = record["answers"][0]


def reordered(record: dict[str, Any]) -> None:
    record["answers"].reverse()


def padded(record: dict[str, Any]) -> None:
    stopped = next(
        answer for answer in record["answers"] if len(answer["ids"]) < record["max_tokens"]
    )
    stopped["ids"] += stopped["ids"][-1:]


def cut(record: dict[str, Any]) -> None:
    record["answers"][0]["ids"] = record["answers"][0]["ids"][:3]


UNEQUAL: dict[str, tuple[Change, list[str]]] = {
    "weights": (
        put("checkpoint>model.safetensors", "0" * 64),
        ["checkpoint.model.safetensors is not", f"found '{'0' * 64}'"],
    ),
    "weights not named": (
        lambda r: r["checkpoint"].pop("model.safetensors"),
        ["checkpoint.model.safetensors is not", "found 'nothing'"],
    ),
    "another file": (
        put("checkpoint>adapter.safetensors", "0" * 64),
        ["checkpoint.adapter.safetensors", "expected 'nothing'"],
    ),
    "tokenizer": (
        put("tokenizer>tokenizer.json", "0" * 64),
        ["tokenizer.tokenizer.json is not", f"found '{'0' * 64}'"],
    ),
    "chat template": (
        put("tokenizer>chat_template.jinja", "0" * 64),
        ["tokenizer.chat_template.jinja is not"],
    ),
    "system": (
        put("system", "You solve."),
        ["system is not", "Du löst Rechenaufgaben.", "found 'You solve.'"],
    ),
    "prompt": (put("prompt", "{question}"), ["prompt is not", "found '{question}'"]),
    "temperature": (
        put("decoding>temperature", 0.7),
        ["decoding.temperature is not", "expected 0.6, found 0.7"],
    ),
    "seed": (put("decoding>seed", 1), ["decoding.seed is not", "expected 42, found 1"]),
    "token limit": (put("max_tokens", 39), ["max_tokens is not", "expected 40, found 39"]),
    "engine": (put("engine", "vllm"), ["engine is not", "expected 'transformers', found 'vllm'"]),
    "item": (
        put("answers>0>item", "mgsm-de-001"),
        ["answers.0.item is not", "found 'mgsm-de-001'"],
    ),
    "item order": (reordered, ["answers.0.item is not"]),
    "item twice": (doubled, ["answers.1.item is not"]),
    "item missing": (
        lambda r: r["answers"].pop(),
        ["answers.7.item is not", "found 'the end of the file'"],
    ),
    "item too many": (
        lambda r: r["answers"].append(r["answers"][0]),
        ["answers is not", "expected '8 items', found '9 items'"],
    ),
    "padding": (padded, ["ids is not", "without padding"]),
    "cut output": (cut, ["answers.0", "ids is not", "stop id or fills 40 tokens", "3 ids"]),
    "longer output": (put("answers>0>ids", [5] * 41), ["answers.0", "ids is not", "41 ids"]),
    "question": (
        put("answers>0>prompt_ids", [1, 2]),
        ["answers.0", "prompt_ids is not", "found [1, 2]"],
    ),
    "logprobs": (
        put("answers>0>logprobs", [-1.0]),
        ["answers.0", "logprobs is not", "found '1 values'"],
    ),
}


@pytest.mark.parametrize("name", UNEQUAL)
def test_anything_unequal_is_refused_by_name(imported: Callable[..., Any], name: str) -> None:
    change, parts = UNEQUAL[name]
    with pytest.raises(RecordedError) as caught:
        imported(change)
    assert [part for part in [RECORDED, *parts] if part not in str(caught.value)] == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (put("format", "retention-baseline/2"), "format: .*retention-baseline/1"),
        (lambda r: r.pop("tokenizer"), "tokenizer: missing"),
        (put("scores", [1]), "scores: unknown key"),
        (put("checkpoint>model.safetensors", "abc"), "checkpoint.model.safetensors: .*abc"),
        (put("answers>0>ids", ["Antwort"]), "answers.0.ids.0: .*Antwort"),
        (put("answers>0>ids", []), "answers.0.ids: .*at least 1"),
        (put("answers>0>ids", [-1]), "answers.0.ids.0: "),
    ],
)
def test_a_file_in_another_format_is_refused_by_key(
    imported: Callable[..., Any], change: Change, message: str
) -> None:
    with pytest.raises(ConfigError, match=rf"(?s){RECORDED} is not valid.*{message}"):
        imported(change)


# Importing the item ids

ITEMS = [Item(f"mgsm-de-{n:03d}", "?", n) for n in range(1, 6)]


@pytest.fixture
def section(study: Path) -> Retention:
    return validate({**read_json(study / "config/retention.json"), "items": 3}, Retention)


def test_ids_are_taken_exactly_and_in_order(
    section: Retention, study: Path, tmp_path: Path
) -> None:
    wanted = ["mgsm-de-005", "mgsm-de-001", "mgsm-de-003"]
    (tmp_path / "ids.txt").write_bytes(b"\xef\xbb\xbf" + "\r\n".join([*wanted, ""]).encode())
    rewrite(
        tmp_path / "sft.json",
        sft_record(study, answers=[{"item": item, "ids": [1]} for item in wanted]),
    )
    for name in ("ids.txt", "sft.json"):
        assert [item.id for item in recorded.named(ITEMS, tmp_path / name, section)] == wanted


@pytest.mark.parametrize(
    ("ids", "error", "message"),
    [
        ("1 2", RecordedError, "ids names 2 items, items says 3"),
        ("1 2 1", RecordedError, r"ids repeat: \['mgsm-de-001'\]"),
        ("1 2 9", RetentionError, "'mgsm-de-009' is no item"),
    ],
)
def test_ids_that_cannot_be_taken_are_refused(
    section: Retention, tmp_path: Path, ids: str, error: type[ValueError], message: str
) -> None:
    (tmp_path / "ids.txt").write_text("".join(f"mgsm-de-00{n}\n" for n in ids.split()))
    with pytest.raises(error, match=rf"ids\.txt: .*{message}"):
        recorded.named(ITEMS, tmp_path / "ids.txt", section)


# An earlier study


def inputs(study: Path, measure: str) -> dict[str, Path]:
    data = (
        {"items": study / "retention/items.jsonl"}
        if measure == "retention"
        else {"tasks": study / "tasks/test/tasks.jsonl"}
    )
    return {
        "policy": study / "start/manifest.json",
        "freeze": study / f"freeze/{measure}.json",
        **data,
    }


@pytest.mark.parametrize("measure", ["agent-test", "retention"])
def test_an_equal_evaluation_is_accepted(micro: Path, study: Path, measure: str) -> None:
    records = {"agent-test": ["episodes.jsonl"], "retention": ["answers.jsonl"]}
    assert (
        Earlier(micro / "results/micro", measure).check(inputs(study, measure)) == records[measure]
    )


def tasks(change: Change) -> Callable[[Path], None]:
    def tamper(study: Path) -> None:
        file = study / "tasks/test/tasks.jsonl"
        rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        change(rows)
        rewrite(file, "".join(json.dumps(row) + "\n" for row in rows))

    return tamper


def freeze(path: str, value: object, measure: str = "agent-test") -> Callable[[Path], None]:
    return lambda study: edit(study / f"freeze/{measure}.json", put(path, value))


def start(path: str, value: object) -> Callable[[Path], None]:
    return lambda study: edit(study / "start/manifest.json", put(path, value))


OTHER: dict[str, tuple[str, Callable[[Path], None], str]] = {
    "budget": ("agent-test", freeze("config>protocol>budget", 129), r"the freeze differs at config\.protocol\.budget \(.* 129, found 128"),
    "decoding": ("agent-test", freeze("config>decoding>top_p", 0.9), r"freeze differs at config\.decoding\.top_p \(expected 0\.9"),
    "trials": ("agent-test", freeze("config>evaluation>trials", 2), r"differs at config\.evaluation\.trials \(expected 2, found 1"),
    "upstream": ("agent-test", freeze("upstream>transformers/cache_utils.py", "0"), r"differs at upstream\.transformers/cache_utils\.py"),
    "tokenizer": ("agent-test", freeze("folders>tokenizer>tokenizer.json", "0"), r"differs at folders\.tokenizer\.tokenizer\.json"),
    "task": ("agent-test", tasks(put("2>answer", 7)), r"the task set differs at line 00003\.answer \(expected 7, found"),
    "fewer tasks": ("agent-test", tasks(list.pop), r"the task set differs at line 00008 \(expected nothing"),
    "weights": ("agent-test", start("outputs>model/model.safetensors", "0"), r"start policy differs at outputs\.model/model\.safetensors"),
    "section": ("agent-test", start("config>threads", 6), r"the start policy differs at config\.threads \(expected 6, found 1"),
    "prompt": ("retention", freeze("config>retention>prompt", "{question}?", "retention"), r"differs at config\.retention\.prompt"),
    "limit": ("retention", freeze("config>retention>max_tokens", 41, "retention"), r"max_tokens \(.* 41, found 40\).*baselines\.retention"),
    "recorded file": ("retention", freeze("files>baseline", "0" * 64, "retention"), r"at files\.baseline \(expected 0+, found nothing"),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHER)
def test_another_study_is_refused_by_the_first_difference(
    micro: Path, study: Path, name: str
) -> None:
    measure, change, message = OTHER[name]
    change(study)
    with pytest.raises(AdoptionError, match=message):
        Earlier(micro / "results/micro", measure).check(inputs(study, measure))


def test_a_difference_is_refused_even_where_the_earlier_inputs_are_gone(
    micro: Path, study: Path
) -> None:
    (study / "freeze/agent-test.json").unlink()
    freeze = micro / "results/micro/freeze/agent-dev.json"
    wanted = {**inputs(micro / "results/micro", "agent-test"), "freeze": freeze}
    with pytest.raises(
        AdoptionError, match=rf"the freeze .*gone or changed.*expected {sha256(freeze)}"
    ):
        Earlier(study, "agent-test").check(wanted)


def test_a_damaged_or_candidate_evaluation_is_refused(micro: Path, study: Path) -> None:
    wanted = inputs(micro / "results/micro", "agent-test")
    file = study / BASELINE / "agent-test/episodes.jsonl"
    rewrite(file, file.read_text(encoding="utf-8") + "\n")
    with pytest.raises(ManifestError, match=r"episodes\.jsonl: changed since"):
        Earlier(study, "agent-test").check(wanted)
    edit(file.parent / "manifest.json", put("policy", "pilot/seed-3"))
    with pytest.raises(
        AdoptionError,
        match=r"kind of evaluation differs at policy \(expected baseline, found pilot/seed-3",
    ):
        Earlier(study, "agent-test").check(wanted)


def test_first_difference_names_the_place() -> None:
    assert first_difference({"a": {"b": 1, "c": [1]}}, {"a": {"c": [1], "b": 1}}) is None
    assert first_difference({"a": {"b": 1, "c": [1]}}, {"a": {"b": 1, "c": [2]}}) == (
        "a.c",
        [1],
        [2],
    )
    assert first_difference({"a": {}}, {"a": {"x": None}}) == ("a.x", "nothing", None)
    assert first_difference({"a": 1}, {"a": {"b": 1}}) == ("a", 1, {"b": 1})


# The real workflow: a second study in the same project takes over all baselines of the first


def plan(folder: Path, *arguments: str) -> dict[str, int]:
    done = snakemake(folder, "-n", "--quiet", "rules", *arguments)
    assert done.returncode == 0, done.stdout
    rows = [line.split() for line in done.stdout.splitlines()]
    return {row[0]: int(row[1]) for row in rows if len(row) == 2 and row[1].isdecimal()}


TAKEN = (
    "--config",
    "study=second",
    "baselines={agent: results/micro, retention: " + RECORDED + "}",
)


@pytest.fixture(scope="module")
def project(micro: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project with a second study that has everything but baselines: its start policy and candidates are the first one's."""
    folder = Path(
        shutil.copytree(micro, tmp_path_factory.mktemp("second") / "project", symlinks=True)
    )
    left_out = shutil.ignore_patterns(
        "baseline", "statistics", "verify", "summary", "work", "log.txt"
    )
    shutil.copytree(folder / "results/micro", folder / "results/second", ignore=left_out)
    rewrite(folder / RECORDED, sft_record(folder / "results/micro"))
    return folder


@pytest.fixture(scope="module")
def second(project: Path) -> Path:
    """The finished second study, its verification included."""
    planned = plan(project, *TAKEN)
    assert (planned["adopt_agent"], planned["import_retention"]) == (2, 1)
    assert planned["evaluate_retention"] == 2, (
        "the freeze names the recorded baseline now; only candidates are evaluated"
    )
    assert not {"evaluate_agent", "train", "demo_base", "adopt_retention"} & set(planned)
    done = snakemake(project, "--show-failed-logs", *TAKEN)
    assert done.returncode == 0, done.stdout[-4000:]
    return project / "results/second"


def test_adopted_records_are_the_earlier_bytes(second: Path) -> None:
    for name in (
        "agent-dev/episodes.jsonl",
        "agent-dev/manifest.json",
        "agent-test/episodes.jsonl",
        "agent-test/manifest.json",
    ):
        assert (second / BASELINE / name).read_bytes() == (
            second.parent / "micro" / BASELINE / name
        ).read_bytes()
    record = read_json(second / BASELINE / "agent-test/provenance.json")
    assert record["command"] == "adopt_baseline.py"
    assert record["adopted"]["study"] == "micro"
    assert record["adopted"]["provenance"]["command"] == "evaluate_agent.py"


def test_the_recorded_file_is_frozen_and_kept(second: Path) -> None:
    digest = sha256(second.parents[1] / RECORDED)
    manifest = read_json(second / BASELINE / "retention/manifest.json")
    assert read_json(second / "freeze/retention.json")["files"]["baseline"] == digest
    assert manifest["inputs"]["recorded"] == manifest["outputs"]["recorded.json"] == digest
    assert (manifest["stage"], manifest["engine"]) == ("import_retention", "transformers")
    earlier = comparison.load(second.parent / "micro" / BASELINE / "retention")
    assert comparison.load(second / BASELINE / "retention").scores.equals(earlier.scores)


def test_everything_downstream_says_where_the_baseline_is_from(second: Path) -> None:
    assert RECORDED_LIMIT in read_json(second / "summary/summary.json")["limits"]
    assert RECORDED_LIMIT not in read_json(second.parent / "micro/summary/summary.json")["limits"]
    findings = verify(second)
    assert findings.passed, findings.first
    assert findings.counts["recorded answers"] == 8
    assert f"{BASELINE}/agent-test: taken over as it is from study micro" in findings.notes
    assert any("recorded elsewhere" in note for note in findings.notes)


def test_only_a_changed_record_is_planned_anew(second: Path) -> None:
    project = second.parents[1]
    assert plan(project, *TAKEN) == {}
    other = sft_record(second.parent / "micro")
    other["answers"][0]["ids"] = other["answers"][1]["ids"]
    rewrite(project / "other.json", other)
    planned = plan(
        project,
        "--config",
        "study=second",
        "baselines={agent: results/micro, retention: other.json}",
    )
    assert {name: planned[name] for name in ("freeze", "import_retention", "evaluate_retention")} == {
        "freeze": 1, "import_retention": 1, "evaluate_retention": 2,
    }  # fmt: skip
    assert not {"adopt_agent", "evaluate_agent", "train"} & set(planned)


def test_a_retention_baseline_of_an_earlier_study_is_adopted(second: Path) -> None:
    """With the earlier study's own freeze, for this one names a recorded file."""
    project = second.parents[1]
    earlier = ["--config", "study=third", "baselines={agent: null, retention: results/micro}"]
    shutil.copytree(project / "results/micro/start", project / "results/third/start")
    target = f"results/third/{BASELINE}/retention/manifest.json"
    assert "adopt_retention" in plan(project, *earlier, "--", target)
    arguments = {
        "earlier": "results/micro", "policy": "results/micro/start/manifest.json", "items": "results/micro/retention/items.jsonl",
        "freeze": "results/micro/freeze/retention.json", "out": "results/third/policies/baseline/retention",
    }  # fmt: skip
    command = [
        sys.executable,
        "scripts/adopt_baseline.py",
        *(part for name, value in arguments.items() for part in (f"--{name}", value)),
    ]
    assert subprocess.run(command, cwd=project, check=False, capture_output=True).returncode == 0
    assert (project / target).read_bytes() == (
        project / f"results/micro/{BASELINE}/retention/manifest.json"
    ).read_bytes()


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "baselines={agent: results/nowhere}",
            f"baselines.agent: no file results/nowhere/{BASELINE}/agent-dev/manifest.json",
        ),
        (
            "baselines={retention: results/nowhere}",
            f"baselines.retention: no file results/nowhere/{BASELINE}/retention/manifest.json",
        ),
        ("baselines={retention: no.json}", "baselines.retention: no file no.json"),
        ("retention={ids_from: no.txt}", "retention.ids_from: no file no.txt"),
    ],
)
def test_what_is_missing_is_refused_before_any_job(override: str, message: str) -> None:
    raw = merge(
        read_yaml(ROOT / "config.yaml"),
        retype(parse_yaml(override.replace("=", ": ", 1), "override")),
    )
    with pytest.raises(ConfigError, match=re.escape(message)):
        check_taken_over(validate_study(raw))


def test_a_missing_earlier_study_is_never_replaced_by_an_evaluation(second: Path) -> None:
    """Not even where a finished baseline would do for Snakemake."""
    done = snakemake(
        second.parents[1], "-n", "--config", "study=second", "baselines={agent: results/nowhere}"
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stdout
    assert (
        f"baselines.agent: no file results/nowhere/{BASELINE}/agent-dev/manifest.json"
        in done.stdout
    )


def test_ids_from_a_file_are_a_declared_input(project: Path) -> None:
    ids = [
        item.id for item in retention.read_items(project / "results/micro/retention/items.jsonl")
    ]
    (project / "ids.txt").write_text("".join(f"{item}\n" for item in reversed(ids)))
    target = "results/ids/retention/items.jsonl"
    done = snakemake(
        project, "--config", "study=ids", "retention={ids_from: ids.txt}", "--", target
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert [item.id for item in retention.read_items(project / target)] == ids[::-1]
    manifest = read_json(project / "results/ids/retention/manifest.json")
    assert manifest["ids_from"] == sha256(project / "ids.txt")
    (project / "ids.txt").write_text("".join(f"{item}\n" for item in ids))
    assert plan(
        project, "--config", "study=ids", "retention={ids_from: ids.txt}", "--", target
    ) == {"retention_items": 1, "total": 1}


# Verification of what was taken over


def forged(second: Path, target: Path) -> Path:
    return Path(shutil.copytree(second, target / "second", copy_function=os.link))


def rehash(study: Path) -> None:
    """The forger makes hashes consistent again: of the record, of its freeze and of everything that consumed the freeze."""
    folder, freeze = study / BASELINE / "retention", study / "freeze/retention.json"
    digest = sha256(folder / "recorded.json")
    edit(freeze, put("files>baseline", digest))
    for file in study.glob("policies/**/retention/manifest.json"):
        edit(
            file,
            lambda content, file=file: content.update(
                outputs={name: sha256(file.parent / name) for name in content["outputs"]}
            ),
        )
        edit(file, put("inputs>freeze", sha256(freeze)))
    edit(folder / "manifest.json", put("inputs>recorded", digest))
    statistics = study / "statistics/manifest.json"
    for role in read_json(statistics)["inputs"]:
        if role.endswith("/retention"):
            edit(
                statistics,
                put(f"inputs>{role}", sha256(study / "policies" / role / "manifest.json")),
            )


FORGED: dict[str, Change] = {
    "weights": put("checkpoint>model.safetensors", "0" * 64),
    "token limit": put("max_tokens", 41),
    "decoding": put("decoding>top_k", 5),
    "output": lambda record: put("answers>0>ids", record["answers"][1]["ids"])(record),
    "engine": put("engine", "vllm"),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_record_with_consistent_hashes_is_named(
    second: Path, tmp_path: Path, name: str
) -> None:
    study = forged(second, tmp_path)
    edit(study / BASELINE / "retention/recorded.json", FORGED[name])
    rehash(study)
    findings = verify(study, summary=False)
    assert "recorded" in findings.first, findings.first
    assert "hash" not in findings.first


def test_a_record_that_the_freeze_does_not_name_is_named(second: Path, tmp_path: Path) -> None:
    study = forged(second, tmp_path)
    edit(study / "freeze/retention.json", lambda content: content["files"].pop("baseline"))
    assert verify(study).first["recorded"].field == "files.baseline"


def test_only_a_recorded_baseline_may_lack_logprobs(study: Path) -> None:
    file = study / BASELINE / "retention/answers.jsonl"
    rewrite(
        file,
        "".join(
            json.dumps({**row, "logprobs": None}, sort_keys=True) + "\n"
            for row in answer_rows(study)
        ),
    )
    assert verify(study).first["recorded"].field == "answers without logprobs"
