"""Verification under attack: one change at a time to a finished study, raw and with every hash regenerated consistently."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from forked_python import interpreter
from safetensors.torch import load_file, save_file

from agentrl.evidence.files import dump, write_json, write_text
from agentrl.evidence.hashing import hash_files, sha256
from agentrl.report import runs
from agentrl.report.summary import GATE_FACTS, render
from agentrl.verify.audit import verify
from agentrl.verify.breaks import Findings
from agentrl.verify.chain import expected_inputs, stage_folders

EVALUATION = "policies/pilot/seed-3/agent-test/episodes.jsonl"
TRAINING = "arms/pilot/seed-3/train/episodes.jsonl"
ANSWERS = "policies/pilot/seed-3/retention/answers.jsonl"
EXTERNAL = ("framing", "observation")
MEASURES = ("agent-dev", "agent-test", "retention")
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
        found = [
            json.loads(line) for line in (study / name).read_text(encoding="utf-8").splitlines()
        ]
        changed = change(found)
        kept = changed if isinstance(changed, list) else found
        write(
            study / name,
            "".join(json.dumps(row, sort_keys=True, separators=(",", ":")) + "\n" for row in kept),
        )

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
    return next(
        row
        for row in found
        if any(call["error"] is None and call["retained"] for call in row["calls"])
    )


def segment(row: dict[str, Any], kind: str, index: int = 0) -> dict[str, Any]:
    return [s for s in row["segments"] if s["kind"] == kind][index]


def put(path: str, value: object | Callable[[Any], object]) -> Callable[[Any], None]:
    """Set a dotted path; a callable maps the old value."""

    def change(content: Any) -> None:
        *parents, last = (part.replace(DOT, ".") for part in path.split("."))
        for part in parents:
            content = content[int(part)] if isinstance(content, list) else content[part]
        key = int(last) if isinstance(content, list) else last
        content[key] = (
            value(content[key] if isinstance(content, list) else content.get(key))
            if callable(value)
            else value
        )

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
    write(
        file,
        file.read_text(encoding="utf-8").replace('"scaffold": "expression"', '"scaffold": "none"'),
    )


def drop_call(found: Rows) -> None:
    lookup_row(found)["calls"].pop(0)


def swap(found: Rows) -> None:
    found[0], found[-1] = found[-1], found[0]


def flip(flag: str) -> Callable[[Rows], None]:
    return lambda found: put(f"0.outcome.{flag}", lambda old: not old)(found)


def flip_mask(found: Rows) -> None:
    first = found[0]["loss_runs"][0]
    found[0]["loss_runs"] = [[1, first[1] - 1], [0, 1], *found[0]["loss_runs"][1:]]


TRAINED = "arms/pilot/seed-3/train/manifest.json"
BASELINE = "policies/baseline/agent-test/manifest.json"
MERGED = "arms/pilot/seed-3/merged/model/model.safetensors"
COMPARED = "statistics/comparison.json"
JUDGED = "statistics/verdict.json"
PAIR = "pilot.pilot/seed-3.agent-test"
SUMMARY = "summary/summary.json"
RUNS = "summary/runs.json"


def told_alike(path: str, change: Callable[[Any], object]) -> Tamper:
    """A number of the summary changed in every file that it is copied from, as a careful forger would: only a recount can tell."""

    def tamper(study: Path) -> None:
        kind, *_ = path.split(".")
        if kind == "checked":
            data("verify/verify.json", put(path.replace("checked", "stages", 1), change))(study)
        elif path.rsplit(".", 1)[1] in GATE_FACTS:
            _, name, fact = path.split(".")
            data(f"arms/{name}/train/manifest.json", put(f"gates.{fact}", change))(study)
        data(SUMMARY, put(path, change))(study)
        found = json.loads((study / SUMMARY).read_text(encoding="utf-8"))
        write(study / "summary/summary.md", render(found))

    return tamper


STEPS = "arms/pilot/seed-3/train/steps.jsonl"
TRAINED_BY = "arms/pilot/seed-3/train/manifest.json"
NODE = "preflight/gpu/report.json"
BASELINE_RAN = "policies/baseline/agent-dev/provenance.json"
ADAPTER = "arms/pilot/seed-3/train/adapter/adapter_model.safetensors"


def together(*changes: Tamper) -> Tamper:
    """Several changes that a forger makes to fit."""

    def tamper(study: Path) -> None:
        for change in changes:
            change(study)

    return tamper


def every(**values: object) -> Callable[[Rows], None]:
    """The same values in every row."""
    return lambda found: [row.update(values) for row in found] and None


def fitting_kl(index: int, kl: float) -> Callable[[Rows], None]:
    """Another KL at one step, and a loss to fit it: micro's weight of the KL term is 0.02."""

    def change(found: Rows) -> None:
        found[index]["loss"] += 0.02 * (kl - found[index]["kl"])
        found[index]["kl"] = kl

    return change


def audited(**values: object) -> Tamper:
    """A merge's audit with other values, in both files that hold it."""
    merged = "arms/pilot/seed-3/merged/"
    return together(
        data(merged + "merge.json", lambda found: found.update(values)),
        data(merged + "manifest.json", lambda found: found["audit"].update(values)),
    )


def counted(change: Callable[[dict[str, Any]], object]) -> Tamper:
    """The gates' numbers of a training, changed."""
    return data(TRAINED_BY, lambda found: change(found["gates"]))


def adopted(
    manifest: str | None = None,
    command: str = "adopt_baseline.py",
    engine: str = "transformers",
    ran: str = "evaluate_agent.py",
) -> Tamper:
    """A baseline that ran here, told as one of an earlier study: consistent but for what is given."""

    def tamper(study: Path) -> None:
        found = manifest or sha256(study / BASELINE_RAN.replace("provenance", "manifest"))
        origin = {
            "study": "earlier",
            "manifest": found,
            "provenance": {"command": ran, "engine": engine},
        }
        data(BASELINE_RAN, lambda content: content.update(command=command, adopted=origin))(study)

    return tamper


GATES: dict[str, tuple[Tamper, str]] = {
    "no gradient at any step": (rows(STEPS, every(grad_norm=0.0)), "gates"),
    "no gradient at any step, and counted so": (
        together(
            rows(STEPS, every(grad_norm=0.0)),
            counted(lambda g: g.update(steps_with_gradient=0, steps_with_signal=1, smallest_gradient_with_signal=0.0)),
        ),
        "gates",
    ),
    "no gradient at one step": (rows(STEPS, put("1.grad_norm", 0.0)), "gates"),
    "a gradient that is no number": (rows(STEPS, put("1.grad_norm", float("nan"))), "gates"),
    "a loss that is not finite": (rows(STEPS, put("1.loss", float("inf"))), "gates"),
    "a KL of 9": (rows(STEPS, put("1.kl", 9.0)), "loss"),
    "a KL of 9 at every step": (rows(STEPS, every(kl=9.0)), "loss"),
    "a KL before anything was trained, and a loss to fit": (rows(STEPS, fitting_kl(0, 9.0)), "gates"),
    "a negative KL, and a loss to fit": (rows(STEPS, fitting_kl(2, -1.0)), "gates"),
    "a KL that hides a thousandth": (rows(STEPS, put("2.kl", lambda old: old + 0.001)), "loss"),
    "a step's loss": (rows(STEPS, put("1.loss", lambda old: old + 1e-5)), "loss"),
    "a step left out": (rows(STEPS, lambda r: r[:-1]), "gates"),
    "a step doubled": (rows(STEPS, put("2.step", 2)), "gates"),
    "gates left out": (data(TRAINED_BY, lambda found: found.pop("gates")), "unreadable"),
    "a gate left out": (counted(lambda g: g.pop("steps_with_signal")), "gates"),
    "mixed groups of the gates": (counted(put("mixed_groups", lambda old: old + 1)), "gates"),
    "steps with a gradient": (counted(put("steps_with_gradient", 2)), "gates"),
    "steps with a signal": (counted(put("steps_with_signal", 0)), "gates"),
    "the smallest gradient": (counted(put("smallest_gradient_with_signal", 1.0)), "gates"),
    "the lowest ratio": (counted(put("ratio_mean_low", 0.2)), "gates"),
    "the highest ratio": (counted(put("ratio_mean_high", 1.5)), "gates"),
    "an adapter tensor that did not change": (counted(put("adapter_tensors_changed", 27)), "gates"),
    "an adapter of fewer tensors": (counted(lambda g: g.update(adapter_tensors=26, adapter_tensors_changed=26)), "gates"),
    "a logit gap of 50": (audited(largest_logit_difference=50.0), "merge"),
    "a logit gap of 50, in the manifest only": (
        data("arms/pilot/seed-3/merged/manifest.json", put("audit.largest_logit_difference", 50.0)),
        "merge",
    ),
    "a logit gap of 50 under a tolerance of 100": (audited(largest_logit_difference=50.0, tolerance=100.0), "merge"),
    "a logit gap of another dtype": (audited(largest_logit_difference=0.3, tolerance=0.5, stored_dtype="bfloat16"), "merge"),
    "a logit gap that is no gap": (audited(largest_logit_difference=-1.0), "merge"),
    "a target that did not change": (audited(changed=13, identical=11), "merge"),
    "a merge of fewer targets": (audited(targets=12, changed=12, identical=12), "merge"),
    "a checkpoint of more tensors": (audited(tensors=25, identical=11), "merge"),
    "logits compared on one stream": (audited(contexts=1), "merge"),
    "an update half kept": (audited(update_kept=0.5), "merge"),
    "a share above 1": (audited(weights_moved=1.5), "merge"),
    "a head that is not tied": (audited(tied_head=False), "merge"),
    "no report of the node": (lambda s: (s / NODE).unlink(), "node"),
    "a node for another model": (data(NODE, put("model.dtype", "bfloat16")), "node"),
    "a node for fewer checkpoints": (data(NODE, put("checkpoints", 1)), "node"),
    "a full disk": (data(NODE, put("free_disk", 1 << 30)), "node"),
    "a package that is missing": (data(NODE, put("packages.trl", "missing")), "node"),
    "a package of another version": (data(NODE, put("packages.trl", "0.29.0")), "node"),
    "weights of another size": (data(NODE, put("weights", 7)), "node"),
    "a GPU that the configuration has no use for": (data(NODE, put("gpu", {"name": "H200"})), "node"),
    "an arm's verdict, inflated": (data("preflight/admitted/pilot.json", put("mixed_groups", 9)), "preflight"),
    "a preflight of fewer groups": (
        together(
            data("preflight/manifest.json", put("config.preflight.groups", 1)),
            rows("preflight/episodes.jsonl", lambda r: r[: len(r) // 2]),
        ),
        "config",
    ),
    "a preflight of smaller groups": (
        together(
            data("config/preflight.json", put("group_size", 2)),
            data("preflight/manifest.json", put("config.preflight.group_size", 2)),
        ),
        "preflight",
    ),
    "mixed groups of the preflight": (
        together(
            data("preflight/manifest.json", put("report.mixed_groups.shaped", 9)),
            data("plan/preflight.json", put("mixed_groups.shaped", 9)),
        ),
        "count",
    ),
    "an adoption that is not told": (data(BASELINE_RAN, put("command", "adopt_baseline.py")), "recorded"),
    "an adoption of another manifest": (adopted(manifest="0" * 64), "recorded"),
    "an adoption by another command": (adopted(command="evaluate_agent.py"), "recorded"),
    "an adoption of another engine's run": (adopted(engine="vllm"), "recorded"),
    "an adoption of another stage's run": (adopted(ran="evaluate_retention.py"), "recorded"),
    "a false-alarm rate": (data(COMPARED, put("pilot.pilot/seed-3.retention.zero_drop_gate.false_alarm_rate", 0.99)), "statistics"),
    "the confidence of an interval": (data(COMPARED, put(f"{PAIR}.interval.confidence", 0.999)), "statistics"),
    "the retention bound's number": (data(JUDGED, put("arms.pilot.retention.non_inferiority.lower", 0.5)), "statistics"),
    "the retention bound's margin": (data(JUDGED, put("arms.pilot.retention.non_inferiority.margin", 0.9)), "statistics"),
}  # fmt: skip
"""What a stage refused to go on without, forged: the training's health, the merge's audit, the node, the preflight, adoption, retention."""

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
    "malformed finals": (data(BASELINE, put("counts.malformed_finals", lambda old: old + 1)), "count"),
    "malformed uncapped": (data(BASELINE, put("counts.malformed_uncapped", lambda old: old + 1)), "count"),
    "token cap": (data(BASELINE, put("counts.token_cap", lambda old: old + 1)), "count"),
    "observation cap": (data(BASELINE, put("counts.observation_cap", lambda old: old + 1)), "count"),
    "infrastructure errors": (data(BASELINE, put("counts.infrastructure_errors", 1)), "count"),
    "malformed answers": (data("policies/baseline/retention/manifest.json", put("counts.malformed_finals", lambda old: old + 1)), "count"),
    "count of an evaluation left out": (data(BASELINE, lambda found: found["counts"].pop("observation_cap")), "count"),
    "count of a retention left out": (
        data("policies/baseline/retention/manifest.json", lambda found: found["counts"].pop("malformed_uncapped")), "count",
    ),
    "totals of a training": (data("arms/pilot/seed-3/train/manifest.json", put("mixed_groups", lambda old: old + 1)), "count"),
    "mean reward": (data("arms/pilot/seed-3/train/manifest.json", put("mean_reward", lambda old: old + 0.01)), "count"),
    "wins": (data(COMPARED, put(f"{PAIR}.wins", lambda old: old + 1)), "statistics"),
    "difference": (data(COMPARED, put(f"{PAIR}.difference", lambda old: old + 0.125)), "statistics"),
    "what a change consists of": (data(COMPARED, put(f"{PAIR}.composition.gained.answer", lambda old: old + 1)), "statistics"),
    "interval": (data(COMPARED, put(f"{PAIR}.interval.low", lambda old: old + 0.125)), "statistics"),
    "p value": (data(COMPARED, put(f"{PAIR}.mcnemar_p", 0.001)), "statistics"),
    "gate": (data(COMPARED, put("pilot.pilot/seed-3.retention.zero_drop_gate.passed", lambda old: not old)), "statistics"),
    "arm's difference": (data(JUDGED, put("arms.pilot.agent-test.difference", lambda old: old + 0.125)), "statistics"),
    "t interval": (data(JUDGED, put("arms.pilot.agent-test.two_way.interval", {"low": 0.5, "high": 0.75})), "statistics"),
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
    "summary's replayed calls": (
        data(SUMMARY, put("checked.policies/pilot/seed-3/agent-test.tool calls", lambda old: old + 1)), "summary",
    ),
    "summary's checked tokens": (data(SUMMARY, put("checked.preflight.sampled tokens", lambda old: old + 1)), "summary"),
    "replayed calls told alike": (told_alike("checked.arms/pilot/seed-3/train.tool calls", lambda old: old + 1), "summary"),
    "a stage that nobody replayed": (told_alike("checked.arms/pilot/seed-9", lambda _: {"episodes": 9}), "summary"),
    "summary's steps with a gradient": (told_alike("training.pilot/seed-3.steps_with_gradient", lambda old: old - 1), "summary"),
    "summary's adapter tensors": (told_alike("training.pilot/seed-3.adapter_tensors", lambda old: old - 1), "summary"),
    "summary's infrastructure errors": (told_alike("training.pilot/seed-3.infrastructure_errors", lambda _: 1), "summary"),
    "release": (told_alike("release.pilot/seed-3.eligible", lambda old: not old), "summary"),
    "where a stage ran": (data(RUNS, put("policies/baseline/agent-test.gpu", "NVIDIA H200")), "summary"),
    "seconds of a stage": (data(RUNS, put("arms/pilot/seed-3/train.training_seconds", 1.0)), "summary"),
    "commit of a stage": (data(RUNS, put("statistics.commit", "0" * 40)), "summary"),
    "a stage left out of the runs": (data(RUNS, lambda found: found.pop("preflight")), "summary"),
    "text of the runs": (lambda s: write(s / "summary/runs.md", "It took no time.\n"), "summary"),
    "summary text": (lambda s: write(s / "summary/summary.md", "GRPO helped.\n"), "summary"),
    "engine of one policy": (data("policies/pilot/seed-3/agent-test/manifest.json", put("engine", "vllm")), "matching"),
    "config of one policy": (data("policies/pilot/seed-3/agent-test/manifest.json", put("config.decoding.top_k", 1)), "matching"),
    "overridden setting": (data(TRAINING.replace("episodes.jsonl", "manifest.json"), put("config.training.kl", 0.5)), "config"),
    "weight of the KL term": (data(TRAINED, put("grpo_config.beta", 0.5)), "arguments"),
    "estimator of the KL term": (data(TRAINED, put("grpo_config.use_bias_correction_kl", lambda old: not old)), "arguments"),
    "moment of the optimizer": (data(TRAINED, put("grpo_config.adam_beta2", 0.95)), "arguments"),
    "a further term of the loss": (data(TRAINED, put("grpo_config.entropy_coef", 0.1)), "arguments"),
    "order of the tasks": (data(TRAINED, put("grpo_config.shuffle_dataset", False)), "arguments"),
    "a default that one run had": (data(TRAINED, put("grpo_config.num_train_epochs", 1.0)), "arguments"),
    "an argument left out of the record": (data(TRAINED, lambda found: found["grpo_config"].pop("top_entropy_quantile")), "arguments"),
    "dropout of the LoRA": (data(TRAINED, put("lora_config.lora_dropout", 0.1)), "arguments"),
    "LoRA of the adapter's file": (
        data(TRAINED.replace("manifest.json", "adapter/adapter_config.json"), put("use_rslora", True)),
        "arguments",
    ),
    "epsilon of the advantages": (data(TRAINED, put("advantage_epsilon", 1e-6)), "arguments"),
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
    **GATES,
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
            content["inputs"] = {
                role: sha256(path) for role, path in expected_inputs(study, folder).items()
            } or content["inputs"]
            write(file, dump(content))
        for freeze in (study / "freeze").glob("*.json"):
            content = json.loads(freeze.read_text(encoding="utf-8"))
            name = (
                "retention/items.jsonl"
                if freeze.stem == "retention"
                else f"tasks/{freeze.stem.removeprefix('agent-')}/tasks.jsonl"
            )
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


def some_light(table: dict[str, Any]) -> list[Any]:
    """A table's rows: each verifies a study, two seconds, so all but every twelfth are heavy."""
    return [
        pytest.param(name, marks=pytest.mark.heavy if row % 12 else ())
        for row, name in enumerate(table)
    ]


@pytest.mark.parametrize("name", some_light(RECOMPUTED))
def test_a_single_change_is_named(study: Path, name: str) -> None:
    change, kind = RECOMPUTED[name]
    change(study)
    findings = verify(study)
    assert kind in findings.first, show(findings)


@pytest.mark.parametrize("name", some_light(RECOMPUTED))
def test_recomputation_catches_it_with_all_hashes_regenerated(study: Path, name: str) -> None:
    change, kind = RECOMPUTED[name]
    change(study)
    rehash(study)
    findings = verify(study)
    assert kind in findings.first, show(findings)
    assert "hash" not in findings.first, (
        "the forger's hashes are consistent: recomputation found it"
    )


@pytest.mark.parametrize("name", some_light(HASHED))
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


def reweighed(file: str, change: Callable[[dict[str, torch.Tensor]], object]) -> Tamper:
    """Change the tensors of a weight file."""

    def tamper(study: Path) -> None:
        tensors = load_file(study / file)
        change(tensors)
        (study / file).unlink()
        save_file(tensors, study / file, {"format": "pt"})

    return tamper


def half_again(tensors: dict[str, torch.Tensor], start: dict[str, torch.Tensor]) -> None:
    """Start plus one and a half times the adapter."""
    tensors.update(
        {name: tensor + 0.5 * (tensor - start[name]) for name, tensor in tensors.items()}
    )


def untrained(tensors: dict[str, torch.Tensor]) -> None:
    next(tensor for name, tensor in tensors.items() if "lora_B" in name).zero_()


def infinite(tensors: dict[str, torch.Tensor]) -> None:
    next(iter(tensors.values()))[0, 0] = float("inf")


@pytest.mark.parametrize(
    ("change", "found"),
    [(untrained, "all 0: it was never trained"), (infinite, "values that are not finite")],
)
def test_an_adapter_tensor_that_was_not_trained_is_named(
    study: Path, change: Callable[[Any], None], found: str
) -> None:
    reweighed(ADAPTER, change)(study)
    rehash(study)
    findings = verify(study, checkpoints=True)
    assert findings.first["gates"].found == found
    assert ".lora_" in findings.first["gates"].record


def test_an_adapter_that_lacks_a_tensor_is_named(study: Path) -> None:
    reweighed(ADAPTER, lambda tensors: tensors.pop(next(iter(tensors))))(study)
    rehash(study)
    assert verify(study).first["gates"].found == "27"


def test_a_merge_that_adds_more_than_the_adapter_is_named(study: Path) -> None:
    start = load_file(study / "start/model/model.safetensors")
    reweighed(MERGED, lambda tensors: half_again(tensors, start))(study)
    audited(update_kept=1.5)(study)
    rehash(study)
    found = verify(study, checkpoints=True).first["merge"]
    assert found.field == "update_kept", "float32 keeps all of an update"
    audited(update_kept=1.0)(study)
    rehash(study)
    found = verify(study, checkpoints=True).first["merge"]
    assert (found.field, found.expected) == ("weights", "start plus adapter, rounded once")


def test_a_gate_is_numbers_of_what_was_checked(study: Path) -> None:
    counts = verify(study).counts
    assert (
        counts["gates of trainings"],
        counts["gates of merges"],
        counts["node reports"],
        counts["losses recomputed"],
    ) == (2, 2, 1, 6)


def retell(study: Path) -> None:
    """Write the summary's table of runs anew, as the summary does that follows what was changed."""
    ran = runs.collect(study)
    write_json(study / "summary" / runs.DATA, ran)
    write_text(study / "summary" / runs.TEXT, runs.render(ran))


def test_an_adoption_that_fits_is_noted(study: Path) -> None:
    adopted()(study)
    retell(study)
    findings = verify(study)
    assert findings.passed, show(findings)
    assert "policies/baseline/agent-dev: taken over as it is from study earlier" in findings.notes


def test_a_stage_in_another_environment_than_the_node_s_is_noted(study: Path) -> None:
    data("arms/pilot/seed-3/train/provenance.json", put("packages.trl", "0.29.0"))(study)
    retell(study)
    findings = verify(study)
    assert findings.passed, show(findings)
    assert any("arms/pilot/seed-3/train: ran with trl 0.29.0" in note for note in findings.notes)


def test_without_weights_the_start_s_own_account_holds(study: Path) -> None:
    """Number of layers and dtype come from its config.json, which the chain holds."""
    for file in study.rglob("*.safetensors"):
        file.unlink()
    findings = verify(study)
    assert findings.passed, show(findings)
    audited(targets=12, changed=12, identical=12)(study)
    assert "merge" in verify(study).first


def test_a_long_value_keeps_its_beginning_and_its_end() -> None:
    findings = Findings(Path("study"))
    findings.add(
        "merge",
        Path("study/merge.json"),
        "",
        "audit",
        "x" * 160,
        "/" + "folder/" * 40 + "model: w did not change\nagain",
    )
    shown = findings.first["merge"]
    assert shown.expected == "x" * 160
    assert shown.found.startswith("/folder/folder/")
    assert shown.found.endswith("model: w did not change\\nagain")
    assert len(shown.found) <= 160


def test_what_was_derived_is_counted_by_stage(study: Path) -> None:
    """Stages add up to the totals; each count is that of the stage's own records."""
    findings = verify(study)
    evaluations = {
        f"policies/{policy}/{m}"
        for policy in ("baseline", "pilot/seed-3", "placebo/seed-3")
        for m in MEASURES
    }
    assert set(findings.stages) == evaluations | {
        "preflight",
        "arms/pilot/seed-3/train",
        "arms/placebo/seed-3/train",
    }
    for kind in ("episodes", "answers", "tool calls", "sampled tokens", "external tokens"):
        assert (
            sum(counts[kind] for counts in findings.stages.values()) == findings.counts[kind] > 0
        ), kind
    records = [
        json.loads(line) for line in (study / TRAINING).read_text(encoding="utf-8").splitlines()
    ]
    expected = {
        "episodes": 24,
        "tool calls": sum(len(row["calls"]) for row in records),
        "sampled tokens": sum(
            len(part["ids"])
            for row in records
            for part in row["segments"]
            if part["kind"] == "sampled"
        ),
        "external tokens": sum(
            len(part["ids"])
            for row in records
            for part in row["segments"]
            if part["kind"] in EXTERNAL
        ),
    }
    assert findings.stages["arms/pilot/seed-3/train"] == expected
    assert findings.as_json()["stages"]["arms/pilot/seed-3/train"] == expected


def test_a_stage_that_ran_again_after_the_summary_is_noted_not_judged(study: Path) -> None:
    """Same bytes, other seconds: Snakemake leaves the summary as it is."""
    data(
        "policies/baseline/retention/provenance.json",
        lambda found: found.update(seconds=99.0, ended="2999-01-01T00:00:00+00:00"),
    )(study)
    findings = verify(study)
    assert findings.passed, show(findings)
    assert (
        "policies/baseline/retention ran again after the summary was written; summary/runs.md tells of the run before"
        in findings.notes
    )


def test_a_provenance_from_before_the_summary_must_be_the_one_that_was_told(study: Path) -> None:
    data("policies/baseline/retention/provenance.json", lambda found: found.update(seconds=99.0))(
        study
    )
    assert verify(study).first["summary"].record == "policies/baseline/retention"


def test_adapters_that_were_deleted_to_save_space_are_no_break_of_the_summary(study: Path) -> None:
    (study / "arms/pilot/seed-3/train/adapter/adapter_model.safetensors").unlink()
    assert "summary" not in verify(study).first


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
    root = Path(__file__).resolve().parents[2]
    return subprocess.run(
        [interpreter(), "scripts/verify.py", str(study), *arguments],
        cwd=root,
        text=True,
        capture_output=True,
        check=False,
    )


def test_the_command_names_file_record_and_field_and_fails(study: Path) -> None:
    RECOMPUTED["strict success"][0](study)
    done = command(study)
    assert done.returncode == 1
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("BROKEN [outcome]")]
    assert all(
        part in line for part in (EVALUATION, "line 1", "outcome.strict", "expected", "found")
    )


def test_the_command_prints_json(study: Path) -> None:
    done = command(study, "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["passed"] is True


def test_with_strict_a_study_that_ran_from_no_commit_fails(study: Path) -> None:
    """The copy in which the micro study ran is no checkout."""
    lenient, strict = command(study), command(study, "--strict")
    assert (lenient.returncode, strict.returncode) == (0, 1)
    assert "note: start: ran from no checkout" in lenient.stdout
    (line,) = [line for line in strict.stdout.splitlines() if line.startswith("BROKEN")]
    assert "[code]" in line
    assert (
        "provenance.json, field commit: expected the commit of a clean checkout, found none" in line
    )


def test_a_folder_that_is_no_study_is_refused(tmp_path: Path) -> None:
    done = command(tmp_path)
    assert done.returncode == 1
    assert "no study" in done.stderr
