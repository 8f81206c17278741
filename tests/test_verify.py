"""Verification under attack: one change at a time to a finished study, raw and with every hash regenerated consistently."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentrl.hashing import hash_files, sha256
from agentrl.manifest import dump
from agentrl.verify.audit import verify
from agentrl.verify.breaks import Findings
from agentrl.verify.chain import expected_inputs, stage_folders

EVALUATION = "policies/pilot/seed-3/agent-test/episodes.jsonl"
TRAINING = "arms/pilot/seed-3/train/episodes.jsonl"
ANSWERS = "policies/pilot/seed-3/retention/answers.jsonl"
DOT = "\ue000"
"""Stands for a dot inside one key of a dotted path."""
Rows = list[dict[str, Any]]
Tamper = Callable[[Path], None]


def write(path: Path, text: str | bytes) -> None:
    """Replace a file; never write through a hard link into the shared study."""
    path.unlink()
    path.write_bytes(text.encode() if isinstance(text, str) else text)


def rows(name: str, change: Callable[[Rows], object]) -> Tamper:
    """Change the records of a JSONL file, in place or by returning others."""

    def tamper(study: Path) -> None:
        found = [json.loads(line) for line in (study / name).read_text(encoding="utf-8").splitlines()]
        changed = change(found)
        kept = changed if isinstance(changed, list) else found
        write(study / name, "".join(json.dumps(row, sort_keys=True, separators=(",", ":")) + "\n" for row in kept))

    return tamper


def data(name: str, change: Callable[[Any], object]) -> Tamper:
    """Change a JSON file."""

    def tamper(study: Path) -> None:
        content = json.loads((study / name).read_text(encoding="utf-8"))
        change(content)
        write(study / name, dump(content))

    return tamper


def lookup_row(found: Rows) -> dict[str, Any]:
    """An episode with a successful call whose observation was retained."""
    return next(row for row in found if any(call["error"] is None and call["retained"] for call in row["calls"]))


def segment(row: dict[str, Any], kind: str, index: int = 0) -> dict[str, Any]:
    return [s for s in row["segments"] if s["kind"] == kind][index]


def put(path: str, value: object | Callable[[Any], object]) -> Callable[[Any], None]:
    """Set a dotted path; a callable maps the old value."""

    def change(content: Any) -> None:
        *parents, last = (part.replace(DOT, ".") for part in path.split("."))
        for part in parents:
            content = content[int(part)] if isinstance(content, list) else content[part]
        key = int(last) if isinstance(content, list) else last
        content[key] = value(content[key]) if callable(value) else value

    return change


def shift_boundary(found: Rows) -> None:
    row = lookup_row(found)
    sampled, framing = segment(row, "sampled"), segment(row, "framing")
    framing["ids"].insert(0, sampled["ids"].pop())
    sampled["logprobs"].pop()


def change_observation(found: Rows) -> None:
    ids = segment(lookup_row(found), "observation")["ids"]
    ids[1] += 1 if ids[1] % 2 else -1


def change_called_id(found: Rows) -> None:
    """Another letter in the sampled record id."""
    ids = segment(lookup_row(found), "sampled")["ids"]
    at = next(i for i in range(len(ids) - 4, 0, -1) if ids[i] != ids[i - 1] and ids[i] < 300)
    ids[at] = ids[at - 1]


def change_scaffold(study: Path) -> None:
    """Another level in the frozen tasks, whose lines stay sound."""
    file = study / "tasks/test/tasks.jsonl"
    write(file, file.read_text(encoding="utf-8").replace('"scaffold": "expression"', '"scaffold": "none"'))


def drop_call(found: Rows) -> None:
    lookup_row(found)["calls"].pop(0)


def swap(found: Rows) -> None:
    found[0], found[-1] = found[-1], found[0]


def flip(flag: str) -> Callable[[Rows], None]:
    return lambda found: put(f"0.outcome.{flag}", lambda old: not old)(found)


def flip_mask(found: Rows) -> None:
    first = found[0]["loss_runs"][0]
    found[0]["loss_runs"] = [[1, first[1] - 1], [0, 1], *found[0]["loss_runs"][1:]]


BASELINE = "policies/baseline/agent-test/manifest.json"
MERGED = "arms/pilot/seed-3/merged/model/model.safetensors"
COMPARED = "statistics/comparison.json"
JUDGED = "statistics/verdict.json"
PAIR = "pilot.pilot/seed-3.agent-test"
SUMMARY = "summary/summary.json"

# name -> (change, kind that recomputation must name even when every hash has been regenerated)
RECOMPUTED: dict[str, tuple[Tamper, str]] = {
    "sampled id of a call": (rows(EVALUATION, change_called_id), "calls"),
    "sampled id of a training call": (rows(TRAINING, change_called_id), "calls"),
    "prompt id": (rows(EVALUATION, put("0.segments.0.ids.5", lambda old: old + 1)), "prompt"),
    "mask boundary": (rows(TRAINING, shift_boundary), "segments"),
    "trained mask": (rows(TRAINING, flip_mask), "mask"),
    "observation": (rows(EVALUATION, change_observation), "observation"),
    "observation in training": (rows(TRAINING, change_observation), "observation"),
    "recorded observation text": (rows(EVALUATION, lambda r: put("calls.0.observation", "{}")(lookup_row(r))), "calls"),
    "call arguments": (rows(EVALUATION, lambda r: put("calls.0.arguments", {"record_id": "BBBBB"})(lookup_row(r))), "calls"),
    "call left out": (rows(EVALUATION, drop_call), "calls"),
    "call's error": (rows(EVALUATION, lambda r: put("calls.0.error", "wrong_id")(lookup_row(r))), "calls"),
    "retained flag": (rows(TRAINING, lambda r: put("calls.0.retained", False)(lookup_row(r))), "calls"),
    "reward": (rows(TRAINING, put("0.reward", lambda old: old + 0.1)), "reward"),
    "placebo's reward": (rows(TRAINING.replace("pilot", "placebo"), put("0.reward", lambda old: 1 - old)), "reward"),
    "advantage": (rows(TRAINING, put("0.advantage", lambda old: old + 0.01)), "advantage"),
    "strict success": (rows(EVALUATION, flip("strict")), "outcome"),
    "strict success in training": (rows(TRAINING, flip("strict")), "outcome"),
    "milestone": (rows(TRAINING, flip("lookup")), "outcome"),
    "accepted answer": (rows(EVALUATION, put("0.outcome.answer", 1)), "outcome"),
    "tool errors": (rows(EVALUATION, put("0.outcome.tool_errors", 7)), "outcome"),
    "how it ended": (rows(EVALUATION, put("0.outcome.end", "turn_cap")), "outcome"),
    "finish reason": (rows(EVALUATION, put("0.segments.1.finish", "length")), "segments"),
    "log-probabilities left out": (rows(EVALUATION, put("0.segments.1.logprobs", lambda old: old[1:])), "segments"),
    "segment too many": (rows(EVALUATION, lambda r: r[0]["segments"].append({"kind": "framing", "ids": [1]})), "segments"),
    "dropped episode": (rows(EVALUATION, lambda r: r[:-1]), "episodes"),
    "doubled episode": (rows(EVALUATION, lambda r: [*r[:-1], r[0]]), "episodes"),
    "swapped episodes": (rows(EVALUATION, swap), "episodes"),
    "dropped training row": (rows(TRAINING, lambda r: r[:-1]), "episodes"),
    "re-ordered training rows": (rows(TRAINING, swap), "episodes"),
    "policy step": (rows(TRAINING, put("0.key.step", 1)), "episodes"),
    "evaluated step": (rows(EVALUATION, put("0.key.step", 0)), "episodes"),
    "seed": (rows(EVALUATION, put("0.key.seed", 1)), "episodes"),
    "policy's name": (rows(EVALUATION, put("0.key.policy", "baseline")), "episodes"),
    "reward in an evaluation": (rows(EVALUATION, put("0.reward", 1.0)), "episodes"),
    "answer's ids": (rows(ANSWERS, put("0.ids", lambda old: old[:-1])), "answer"),
    "answer's score": (rows(ANSWERS, put("0.correct", lambda old: not old)), "answer"),
    "flexible score": (rows(ANSWERS, put("0.flexible_correct", lambda old: not old)), "answer"),
    "answer's prompt": (rows(ANSWERS, put("0.prompt_ids.4", lambda old: old + 1)), "answer"),
    "dropped answer": (rows(ANSWERS, lambda r: r[:-1]), "episodes"),
    "gold answer": (rows("retention/items.jsonl", lambda r: [put("answer", lambda old: old + 1)(row) for row in r] and None), "answer"),
    "private fact": (rows("tasks/test/tasks.jsonl", put("0.facts.menge", lambda old: old + 1)), "unreadable"),
    "step record": (rows("arms/pilot/seed-3/train/steps.jsonl", put("1.mean_reward", lambda old: old + 0.5)), "steps"),
    "step's strict count": (rows("arms/pilot/seed-3/train/steps.jsonl", put("0.strict", lambda old: old + 1)), "steps"),
    "sampler's gap": (rows("arms/pilot/seed-3/train/steps.jsonl", put("1.gap_mean", lambda old: old + 2)), "steps"),
    "vanished ratio": (rows("arms/pilot/seed-3/train/steps.jsonl", put("1.ratio_mean", 0.01)), "steps"),
    "tokens far from the trainer": (rows("arms/pilot/seed-3/train/steps.jsonl", put("2.ratio_outside", 0.2)), "steps"),
    "sampled tokens of a step": (rows("arms/pilot/seed-3/train/steps.jsonl", put("0.sampled_tokens", lambda old: old + 1)), "steps"),
    "largest gap": (data("arms/pilot/seed-3/train/manifest.json", put("gap_max", 0.5)), "count"),
    "engine of one episode": (rows(EVALUATION, put("0.engine", "vllm")), "engine"),
    "engine of a training": (data("arms/pilot/seed-3/train/manifest.json", put("engine", "vllm")), "engine"),
    "counts of an evaluation": (data(BASELINE, put("counts.strict_success", lambda old: old + 1)), "count"),
    "totals of a training": (data("arms/pilot/seed-3/train/manifest.json", put("mixed_groups", lambda old: old + 1)), "count"),
    "mean reward": (data("arms/pilot/seed-3/train/manifest.json", put("mean_reward", lambda old: old + 0.01)), "count"),
    "wins": (data(COMPARED, put(f"{PAIR}.wins", lambda old: old + 1)), "statistics"),
    "difference": (data(COMPARED, put(f"{PAIR}.difference", lambda old: old + 0.125)), "statistics"),
    "interval": (data(COMPARED, put(f"{PAIR}.interval.low", lambda old: old + 0.125)), "statistics"),
    "p value": (data(COMPARED, put(f"{PAIR}.mcnemar_p", 0.001)), "statistics"),
    "gate": (data(COMPARED, put("pilot.pilot/seed-3.retention.zero_drop_gate.passed", lambda old: not old)), "statistics"),
    "arm's difference": (data(JUDGED, put("arms.pilot.agent-test.difference", lambda old: old + 0.125)), "statistics"),
    "t interval": (data(JUDGED, put("arms.pilot.agent-test.two_way.interval", None)), "statistics"),
    "arm's p value": (data(JUDGED, put("arms.pilot.agent-test.item_p", 0.001)), "statistics"),
    "crossed bootstrap": (data(JUDGED, put("arms.pilot.agent-test.crossed_bootstrap.low", 0.5)), "statistics"),
    "pass^k": (data(JUDGED, put("pass_hat_k.baseline.agent-test.1", 0.99)), "statistics"),
    "retention bound": (data(JUDGED, put("arms.pilot.retention.non_inferiority.passed", lambda old: not old)), "statistics"),
    "rule": (data(JUDGED, put("rule.pilot", {"improved": True, "missing": []})), "statistics"),
    "placebos": (data(JUDGED, put("placebos", [])), "statistics"),
    "plan": (data("plan/power.json", put("power", 0.99)), "statistics"),
    "plan's sentence": (data("plan/power.json", put("sentences.0", "This design sees everything.")), "statistics"),
    "summary number": (data(SUMMARY, put("policies.baseline.agent-test.strict_success", lambda old: old + 1)), "summary"),
    "summary sentence": (data(SUMMARY, put("findings.0", "GRPO helped.")), "summary"),
    "summary text": (lambda s: write(s / "summary/summary.md", "GRPO helped.\n"), "summary"),
    "engine of one policy": (data("policies/pilot/seed-3/agent-test/manifest.json", put("engine", "vllm")), "matching"),
    "config of one policy": (data("policies/pilot/seed-3/agent-test/manifest.json", put("config.decoding.top_k", 1)), "matching"),
    "overridden setting": (data(TRAINING.replace("episodes.jsonl", "manifest.json"), put("config.training.kl", 0.5)), "config"),
    "preflight's call": (rows("preflight/episodes.jsonl", change_called_id), "calls"),
    "preflight's dropped episode": (rows("preflight/episodes.jsonl", lambda r: r[:-1]), "episodes"),
    "preflight on an unseen split": (rows("preflight/episodes.jsonl", put("0.key.split", "dev")), "episodes"),
    "preflight's report": (data("plan/preflight.json", put("counts.lookup", lambda old: old + 1)), "count"),
    "an arm's verdict": (data("preflight/admitted/pilot.json", put("mixed_groups", lambda old: old - 1)), "preflight"),
    "an arm without a verdict": (lambda s: (s / "preflight/admitted/pilot.json").unlink(), "unreadable"),
    "an arm of another reward": (data("config/arm-placebo.json", put("reward", "binary")), "config"),
    "scaffold of the tasks": (change_scaffold, "tasks"),
    "version of a record": (rows(EVALUATION, put("0.version", 1)), "episodes"),
    "scaffold in the limits": (data(SUMMARY, put("limits.5", "No action is scaffolded.")), "summary"),
    "upstream code of one freeze": (data("freeze/agent-dev.json", put(f"upstream.transformers/cache_utils{DOT}py", "0" * 64)), "freeze"),
}  # fmt: skip

# name -> (change, kind): only the recorded hashes can tell, because the file is consistent in itself
HASHED: dict[str, tuple[Tamper, str]] = {
    "weights": (lambda s: write(s / "start/model/model.safetensors", flipped(s / "start/model/model.safetensors")), "hash"),
    "merged weights": (lambda s: write(s / MERGED, flipped(s / MERGED)), "hash"),
    "tokenizer": (data("start/tokenizer/tokenizer_config.json", put("model_max_length", 7)), "hash"),
    "manifest's output hash": (data("policies/baseline/agent-dev/manifest.json", put(f"outputs.episodes{DOT}jsonl", "0" * 64)), "hash"),
    "manifest's input hash": (data("policies/baseline/agent-dev/manifest.json", put("inputs.policy", "0" * 64)), "chain"),
    "config value": (data("config/decoding.json", put("temperature", 0.9)), "config"),
    "log-probability": (rows(EVALUATION, put("0.segments.1.logprobs.0", -9.0)), "hash"),
    "missing file": (lambda s: (s / ANSWERS).unlink(), "missing"),
    "truncated line": (lambda s: write(s / EVALUATION, (s / EVALUATION).read_bytes()[:-20]), "unreadable"),
    "garbage": (lambda s: write(s / TRAINING, b"\x00\xff" * 50), "unreadable"),
}  # fmt: skip


def flipped(path: Path) -> bytes:
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    return bytes(content)


def rehash(study: Path) -> None:
    """What a careful forger would do: make every manifest and freeze consistent with the files again."""
    for _ in range(6):  # the chain is six stages long
        for folder in stage_folders(study):
            file = folder / "manifest.json"
            content = json.loads(file.read_text(encoding="utf-8"))
            content["outputs"] = hash_files(folder, list(content["outputs"]))
            content["inputs"] = {role: sha256(path) for role, path in expected_inputs(study, folder).items()} or content["inputs"]
            write(file, dump(content))
        for freeze in (study / "freeze").glob("*.json"):
            content = json.loads(freeze.read_text(encoding="utf-8"))
            name = "retention/items.jsonl" if freeze.stem == "retention" else f"tasks/{freeze.stem.removeprefix('agent-')}/tasks.jsonl"
            content["files"]["data"] = sha256(study / name)
            write(freeze, dump(content))


@pytest.fixture
def study(micro: Path, tmp_path: Path) -> Path:
    """A hard-linked copy of the finished study: cheap, and `write` never reaches the original."""
    return Path(shutil.copytree(micro / "results/micro", tmp_path / "study", copy_function=os.link))


def show(findings: Findings) -> str:
    return "\n".join(map(str, findings.first.values()))


def test_an_untouched_study_passes(study: Path) -> None:
    findings = verify(study, checkpoints=True)
    assert findings.passed, show(findings)
    assert findings.counts["episodes"] == 3 * 14 + 2 * 24 + 2 * 4, "evaluation, training, preflight"
    assert findings.counts["training rows"] == 48
    assert findings.counts["answers"] == 24
    assert findings.counts["merges audited"] == 2
    assert findings.counts["tool calls"] > 10
    assert findings.counts["summaries"] == 1


def test_rehashing_an_untouched_study_breaks_nothing(study: Path) -> None:
    rehash(study)
    assert verify(study).passed


@pytest.mark.parametrize("name", RECOMPUTED)
def test_a_single_change_is_named(study: Path, name: str) -> None:
    change, kind = RECOMPUTED[name]
    change(study)
    findings = verify(study)
    assert kind in findings.first, show(findings)


@pytest.mark.parametrize("name", RECOMPUTED)
def test_recomputation_catches_it_with_all_hashes_regenerated(study: Path, name: str) -> None:
    change, kind = RECOMPUTED[name]
    change(study)
    rehash(study)
    findings = verify(study)
    assert kind in findings.first, show(findings)
    assert "hash" not in findings.first, "the forger's hashes are consistent: recomputation found it"


@pytest.mark.parametrize("name", HASHED)
def test_a_change_that_only_hashes_can_tell_is_named(study: Path, name: str) -> None:
    change, kind = HASHED[name]
    change(study)
    findings = verify(study, checkpoints=True)
    assert kind in findings.first, show(findings)


def test_a_merged_checkpoint_that_is_not_start_plus_adapter_is_named(study: Path) -> None:
    merged, start = study / MERGED, study / "start/model/model.safetensors"
    write(merged, start.read_bytes())
    rehash(study)
    findings = verify(study, checkpoints=True)
    assert "merge" in findings.first
    assert "did not change" in findings.first["merge"].found


def test_a_long_value_keeps_its_beginning_and_its_end() -> None:
    findings = Findings(Path("study"))
    findings.add("merge", Path("study/merge.json"), "", "audit", "x" * 160, "/" + "folder/" * 40 + "model: w did not change\nagain")
    shown = findings.first["merge"]
    assert shown.expected == "x" * 160
    assert shown.found.startswith("/folder/folder/")
    assert shown.found.endswith("model: w did not change\\nagain")
    assert len(shown.found) <= 160


def as_binary(found: dict[str, Any]) -> None:
    found["config"]["arm"]["reward"] = "binary"


def test_binary_rewards_are_recomputed(study: Path) -> None:
    """The placebo's run declared to be a binary arm: its coins are named, rewards of strict success are not."""
    run = study / "arms/placebo/seed-3/train"
    data("config/arm-placebo.json", put("reward", "binary"))(study)
    data("arms/placebo/seed-3/train/manifest.json", as_binary)(study)
    rehash(study)
    assert "reward" in verify(study).first
    rows(
        run.relative_to(study).as_posix() + "/episodes.jsonl",
        lambda r: [row.update(reward=float(row["outcome"]["strict"])) for row in r] and None,
    )(study)
    rehash(study)
    assert "reward" not in verify(study).first


def test_a_study_without_preflight_is_noted(study: Path) -> None:
    shutil.rmtree(study / "preflight")
    findings = verify(study)
    assert any("no preflight" in note for note in findings.notes)


def test_leftovers_of_another_arm_are_noted_not_judged(study: Path) -> None:
    shutil.copytree(study / "policies/pilot", study / "policies/former")
    findings = verify(study)
    assert findings.passed, show(findings)
    assert any("policies/former/seed-3" in note for note in findings.notes)


def command(study: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    root = Path(__file__).resolve().parents[1]
    return subprocess.run(
        [sys.executable, "scripts/verify.py", str(study), *arguments], cwd=root, text=True, capture_output=True, check=False
    )


def test_the_command_names_file_record_and_field_and_fails(study: Path) -> None:
    RECOMPUTED["strict success"][0](study)
    done = command(study)
    assert done.returncode == 1
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("BROKEN [outcome]")]
    assert all(part in line for part in (EVALUATION, "line 1", "outcome.strict", "expected", "found"))


def test_the_command_prints_json(study: Path) -> None:
    done = command(study, "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["passed"] is True


def test_a_folder_that_is_no_study_is_refused(tmp_path: Path) -> None:
    done = command(tmp_path)
    assert done.returncode == 1
    assert "no study" in done.stderr
