"""Check the evidence files: evaluation episodes, retention answers, training rows; recompute everything their manifests count."""

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from agentrl.engine.scripted import ScriptedEngine
from agentrl.evaluation.retention import Item, flexible_answer, messages
from agentrl.evaluation.settings import EvaluationShape, Retention
from agentrl.evidence.files import read_json
from agentrl.evidence.section import validate
from agentrl.rollout.chat import ChatProtocol, parse_turn
from agentrl.rollout.seeding import uniform
from agentrl.rollout.settings import Protocol
from agentrl.rollout.trajectory import VERSION
from agentrl.tasks.families import Task
from agentrl.training.health import RATIO_BOUNDS
from agentrl.training.settings import Arm, Preflight, Reward, TrainingSettings
from agentrl.verify.breaks import Findings
from agentrl.verify.replay import Replay, group_relative, milestone_reward, replay, runs

RETENTION_COUNTS = (
    "items", "correct", "flexible_correct", "malformed_finals", "malformed_uncapped", "token_cap", "assistant_tokens",
    "infrastructure_errors",
)  # fmt: skip
TOLERANCE = 1e-6
"""Rewards and advantages are recorded with six decimals."""


Parts = dict[tuple[str, int], tuple[bool, bool]]
"""(task, trial) -> valid workflow, correct answer."""


class Evidence:
    """Checks one study's records; keeps the scores that statistics must follow from.

    Args:
        study: `results/{study}`.
        chat: protocol over the start's tokenizer.
        findings: receives breaks and counts.
    """

    def __init__(self, study: Path, chat: ChatProtocol, findings: Findings) -> None:
        self.study, self.chat, self.findings = study, chat, findings
        self.scores: dict[tuple[str, str], pd.DataFrame] = {}
        """(policy, measure) -> item, trial, recomputed score."""
        self.counts: dict[tuple[str, str], dict[str, int]] = {}
        """(policy, measure) -> recomputed counts."""
        self.parts: dict[tuple[str, str], Parts] = {}
        """(policy, agent measure) -> recomputed parts of strict success."""

    def agent(self, policy: str, split: str, tasks: Sequence[Task], steps: int) -> None:
        """One policy's episodes on one split: complete, in order, each following from its ids."""
        folder = self.study / "policies" / policy / f"agent-{split}"
        file = folder / "episodes.jsonl"
        with self.findings.reading(file):
            manifest = read_json(folder / "manifest.json")
            protocol = validate(manifest["config"]["protocol"], Protocol)
            trials = validate(manifest["config"]["evaluation"], EvaluationShape).trials
            seed = manifest["config"]["decoding"]["seed"]
            wanted = [
                (policy, steps, split, task.id, trial, seed)
                for trial in range(trials)
                for task in tasks
            ]
            table = {task.id: task for task in tasks}
            rows, scores = [], []
            for number, record in self._records(file, wanted):
                if (task := table.get(record["key"]["task"])) is None:
                    continue
                found = self._episode(file, number, record, task, protocol, manifest["engine"])
                self._absent(
                    file, _name(number, record), record, ("reward", "advantage", "loss_runs")
                )
                rows.append((record, found))
                scores.append((task.id, record["key"]["trial"], int(found.outcome["strict"])))
            counts = _agent_counts(rows, len(wanted))
            self.findings.equal(
                "count", folder / "manifest.json", "", "counts", counts, manifest["counts"]
            )
            self.counts[policy, f"agent-{split}"] = counts
            self.parts[policy, f"agent-{split}"] = _parts(rows)
            self.scores[policy, f"agent-{split}"] = pd.DataFrame(
                scores, columns=["item", "trial", "score"]
            )

    def retention(self, policy: str, items: Sequence[Item], steps: int) -> None:
        """One policy's answers: every item once, prompts and both scores re-derived from ids."""
        folder = self.study / "policies" / policy / "retention"
        file = folder / "answers.jsonl"
        with self.findings.reading(file):
            manifest = read_json(folder / "manifest.json")
            section = validate(manifest["config"]["retention"], Retention)
            lines = list(read_lines(file))
            counts, scores = (
                Counter(
                    dict.fromkeys(RETENTION_COUNTS, 0),
                    infrastructure_errors=len(items) - len(lines),
                ),
                [],
            )
            self.findings.equal(
                "episodes",
                file,
                "",
                "items",
                [item.id for item in items],
                [row["item"] for _, row in lines],
            )
            for (number, row), item in zip(lines, items, strict=False):
                counts.update(self._answer(file, number, row, item, section, policy, steps))
                scores.append((item.id, 0, int(row["correct"])))
            self.findings.equal(
                "count", folder / "manifest.json", "", "counts", dict(counts), manifest["counts"]
            )
            self.counts[policy, "retention"] = dict(counts)
            self.scores[policy, "retention"] = pd.DataFrame(
                scores, columns=["item", "trial", "score"]
            )

    def _answer(
        self,
        file: Path,
        number: int,
        row: Mapping[str, Any],
        item: Item,
        section: Retention,
        policy: str,
        steps: int,
    ) -> Counter[str]:
        name, ids = f"line {number} ({item.id})", row["ids"]
        text = self.chat.decode(ids)
        stopped = bool(ids) and ids[-1] in self.chat.stop_ids
        strict = parse_turn(text).answer if stopped else None
        flexible = flexible_answer(text)
        expected = {
            "policy": policy,
            "step": steps,
            "seed": section.decoding.seed,
            "prompt_ids": self.chat.prompt(messages(section, item.question), tools=False),
            "finish": "stop" if stopped else "length",
            "strict": strict,
            "flexible": flexible,
            "correct": strict is not None and strict == item.answer,
            "flexible_correct": flexible is not None and flexible == item.answer,
        }
        for field, value in expected.items():
            self.findings.equal("answer", file, name, field, value, row[field])
        if not 0 < len(ids) <= section.max_tokens or (
            not stopped and len(ids) != section.max_tokens
        ):
            self.findings.add(
                "budget",
                file,
                name,
                "ids",
                f"an answer that stops or fills {section.max_tokens} tokens",
                f"{len(ids)} ids",
            )
        if (
            row["logprobs"] is not None or policy != "baseline"
        ):  # a recorded baseline may lack them; `baselines.check_recorded` tells
            self.findings.equal(
                "answer", file, name, "logprobs", len(ids), len(row["logprobs"] or [])
            )
        self.findings.derived(file.parent, {"answers": 1, "sampled tokens": len(ids)})
        return Counter(
            items=1, correct=int(expected["correct"]), flexible_correct=int(expected["flexible_correct"]),
            malformed_finals=int(strict is None), malformed_uncapped=int(strict is None and stopped), token_cap=int(not stopped),
            assistant_tokens=len(ids),
        )  # fmt: skip

    def training(self, policy: str, tasks: Sequence[Task]) -> None:
        """One training run: steps, groups, rewards, advantages and masks of every row."""
        folder = self.study / "arms" / policy / "train"
        file = folder / "episodes.jsonl"
        with self.findings.reading(file):
            manifest = read_json(folder / "manifest.json")
            config = manifest["config"]
            settings, protocol = (
                validate(config["training"], TrainingSettings),
                validate(config["protocol"], Protocol),
            )
            arm, weights, seed = (
                validate(config["arm"], Arm),
                validate(config["reward"], Reward),
                config["seed"],
            )
            self.findings.equal(
                "chain", folder / "manifest.json", "", "policy", policy, manifest["policy"]
            )
            table = {task.id: task for task in tasks}
            lines = list(read_lines(file))
            wanted = settings.steps * settings.batch_size
            self.findings.equal("episodes", file, "", "number of episodes", wanted, len(lines))
            for start in range(0, len(lines), settings.batch_size):
                batch = lines[start : start + settings.batch_size]
                self._order(file, batch, start // settings.batch_size, policy, seed, settings)
                outcomes = [
                    self._episode(
                        file, n, row, table[row["key"]["task"]], protocol, manifest["engine"]
                    )
                    for n, row in batch
                ]
                self._rewards(file, batch, outcomes, arm, weights, settings)
            self._steps(folder, lines, settings, manifest)

    def warmup(self, policy: str, tasks: Sequence[Task]) -> None:
        """One arm's demonstrations: every training task once, each a strict success that follows from its ids."""
        folder = self.study / "arms" / policy / "warmup"
        file = folder / "demonstrations.jsonl"
        with self.findings.reading(file):
            manifest = read_json(folder / "manifest.json")
            protocol, seed = (
                validate(manifest["config"]["protocol"], Protocol),
                manifest["config"]["seed"],
            )
            self.findings.equal(
                "chain", folder / "manifest.json", "", "policy", policy, manifest["policy"]
            )
            table = {task.id: task for task in tasks}
            wanted = [(policy, 0, "train", task.id, 0, seed) for task in tasks]
            for number, record in self._records(file, wanted):
                if (task := table.get(record["key"]["task"])) is None:
                    continue
                found = self._episode(file, number, record, task, protocol, ScriptedEngine.name)
                self._absent(
                    file, _name(number, record), record, ("reward", "advantage", "loss_runs")
                )
                if not found.outcome["strict"]:
                    self.findings.add(
                        "warm-up", file, _name(number, record), "outcome.strict", True, False
                    )
            self.findings.equal(
                "count",
                folder / "manifest.json",
                "",
                "demonstrations",
                len(tasks),
                manifest["demonstrations"],
            )

    def preflight(self, tasks: Sequence[Task], arms: Sequence[str]) -> None:
        """The groups sampled before training: complete, following from their ids; the report and the verdict of every trained arm."""
        folder, report = self.study / "preflight", self.study / "plan" / "preflight.json"
        file = folder / "episodes.jsonl"
        with self.findings.reading(file):
            manifest = read_json(folder / "manifest.json")
            config = manifest["config"]
            section, protocol = (
                validate(config["preflight"], Preflight),
                validate(config["protocol"], Protocol),
            )
            weights, seed = validate(config["reward"], Reward), config["decoding"]["seed"]
            size, table = section.group_size, {task.id: task for task in tasks}
            wanted = [
                ("baseline", 0, "train", task.id, trial, seed)
                for task in tasks[: section.groups]
                for trial in range(size)
            ]
            rows = []
            for number, record in self._records(file, wanted):
                if (task := table.get(record["key"]["task"])) is None:
                    continue
                rows.append(
                    (
                        record,
                        self._episode(file, number, record, task, protocol, manifest["engine"]),
                    )
                )
                self._absent(
                    file, _name(number, record), record, ("reward", "advantage", "loss_runs")
                )
            mixed = {
                name: _mixed(rows, size, size, Arm(reward=name), weights)
                for name in ("shaped", "random", "binary")
            }
            expected = {
                "groups": section.groups,
                "group_size": size,
                "counts": _agent_counts(rows, len(wanted)),
                "mixed_groups": mixed,
            }
            self.findings.equal(
                "count", folder / "manifest.json", "", "report", expected, manifest["report"]
            )
            self.findings.equal("count", report, "", "preflight", expected, read_json(report))
            for name in arms:
                self._admitted(folder / "admitted" / f"{name}.json", rows, section, weights)

    def _admitted(
        self,
        file: Path,
        rows: Sequence[tuple[Mapping[str, Any], Replay]],
        section: Preflight,
        weights: Reward,
    ) -> None:
        """One arm's verdict; an arm that was trained although no group was mixed is a break."""
        with self.findings.reading(file):
            config = self.study / "config"
            arm = validate(read_json(config / f"arm-{file.stem}.json"), Arm)
            size = arm.content()["training"].get(
                "group_size", read_json(config / "training.json")["group_size"]
            )
            if size > section.group_size:
                self.findings.add(
                    "preflight",
                    file,
                    "",
                    "group_size",
                    f"at most the {section.group_size} that were sampled",
                    size,
                )
            mixed = _mixed(rows, section.group_size, size, arm, weights)
            expected = {
                "arm": file.stem,
                "reward": arm.reward,
                "groups": section.groups,
                "group_size": size,
                "mixed_groups": mixed,
            }
            self.findings.equal("preflight", file, "", "verdict", expected, read_json(file))
            if mixed == 0 and arm.reward != "random" and arm.warmup is None:
                self.findings.add(
                    "preflight", file, "", "mixed_groups", "at least 1, or the arm is refused", 0
                )

    def _order(
        self,
        file: Path,
        batch: Sequence[tuple[int, dict[str, Any]]],
        step: int,
        policy: str,
        seed: int,
        settings: TrainingSettings,
    ) -> None:
        """Rows of one step: consecutive groups of one task, trials counted from 0, sampled by the policy of that step."""
        for position, (number, row) in enumerate(batch):
            first = batch[position - position % settings.group_size][1]["key"]["task"]
            key = {
                "policy": policy, "step": step, "split": "train", "task": first, "trial": position % settings.group_size, "seed": seed,
            }  # fmt: skip
            self.findings.equal("episodes", file, _name(number, row), "key", key, row["key"])

    def _rewards(
        self,
        file: Path,
        batch: Sequence[tuple[int, dict[str, Any]]],
        outcomes: Sequence[Replay],
        arm: Arm,
        weights: Reward,
        settings: TrainingSettings,
    ) -> None:
        rewards = [
            _reward(row["key"], found, arm, weights)
            for (_, row), found in zip(batch, outcomes, strict=True)
        ]
        advantages = group_relative(rewards, settings.group_size, settings.scale_rewards == "group")
        for (number, row), found, reward, advantage in zip(
            batch, outcomes, rewards, advantages, strict=True
        ):
            name = _name(number, row)
            if abs(row["reward"] - reward) > TOLERANCE:
                self.findings.add("reward", file, name, "reward", reward, row["reward"])
            if abs(row["advantage"] - advantage) > 2e-4:  # the loss had it in float32
                self.findings.add(
                    "advantage", file, name, "advantage", round(advantage, 6), row["advantage"]
                )
            self.findings.equal(
                "mask",
                file,
                name,
                "loss_runs",
                runs(self._loss_mask(row, found, settings)),
                row["loss_runs"],
            )
            self.findings.counts["training rows"] += 1

    def _loss_mask(
        self, row: Mapping[str, Any], found: Replay, settings: TrainingSettings
    ) -> list[int]:
        """What the loss looks at: the sampled tokens, or nothing of an episode that breaks off, where those are left out."""
        last = row["segments"][-1]["ids"][-1]
        whole = last in self.chat.stop_ids or last == self.chat.tokenizer.pad_token_id
        return found.mask if whole or not settings.mask_truncated else [0] * len(found.mask)

    def _steps(
        self,
        folder: Path,
        lines: Sequence[tuple[int, dict[str, Any]]],
        settings: TrainingSettings,
        manifest: Mapping[str, Any],
    ) -> None:
        """Step records and the run's totals, recounted from the rows."""
        steps = [row for _, row in read_lines(folder / "steps.jsonl")]
        self.findings.equal(
            "steps",
            folder / "steps.jsonl",
            "",
            "steps",
            list(range(1, settings.steps + 1)),
            [s["step"] for s in steps],
        )
        size, totals, tasks = settings.batch_size, Counter[str](), set[str]()
        reward = 0.0
        for number, step in enumerate(steps, 1):
            rows = [row for _, row in lines[(step["step"] - 1) * size : step["step"] * size]]
            groups = [
                rows[i : i + settings.group_size] for i in range(0, len(rows), settings.group_size)
            ]
            expected = {
                "episodes": len(rows),
                "tasks": [group[0]["key"]["task"] for group in groups],
                "mixed_groups": sum(len({row["reward"] for row in group}) > 1 for group in groups),
                "strict": sum(row["outcome"]["strict"] for row in rows),
                "mean_reward": round(sum(row["reward"] for row in rows) / max(1, len(rows)), 6),
                "sampled_tokens": sum(
                    len(part["ids"])
                    for row in rows
                    for part in row["segments"]
                    if part["kind"] == "sampled"
                ),
            }
            for field, value in expected.items():
                self.findings.equal(
                    "steps", folder / "steps.jsonl", f"line {number}", field, value, step[field]
                )
            self._gap(folder / "steps.jsonl", number, step)
            totals.update({"steps": 1, "episodes": len(rows), "groups": len(groups)})
            totals.update(
                {"mixed_groups": expected["mixed_groups"], "strict_success": expected["strict"]}
            )
            tasks.update(expected["tasks"])
            reward += sum(row["reward"] for row in rows)
        claims = {
            **totals,
            "unique_tasks": len(tasks),
            "gap_max": max((step["gap_max"] for step in steps), default=0.0),
        }
        for field, value in claims.items():
            self.findings.equal(
                "count", folder / "manifest.json", "", field, value, manifest[field]
            )
        if abs(manifest["mean_reward"] - reward / max(1, totals["episodes"])) > TOLERANCE:
            self.findings.add(
                "count",
                folder / "manifest.json",
                "",
                "mean_reward",
                reward / max(1, totals["episodes"]),
                manifest["mean_reward"],
            )

    def _gap(self, file: Path, number: int, step: Mapping[str, Any]) -> None:
        """Sampler against trainer: the trainer's numbers need the model, but those of one step must fit together and pass the gate."""
        mean, largest, ratio, outside = (
            step[name] for name in ("gap_mean", "gap_max", "ratio_mean", "ratio_outside")
        )
        low, high = RATIO_BOUNDS
        widest, slack = min(largest, 50.0), 1e-5  # six decimals
        possible = (
            0 <= mean <= largest + slack
            and math.exp(-widest) - slack <= ratio <= math.exp(widest) * (1 + slack) + slack
        )
        possible = possible and 0 <= outside <= (1 if largest + slack >= math.log(high) else 0)
        if not (possible and low <= ratio <= high):
            fields = "gap_mean, gap_max, ratio_mean, ratio_outside"
            expected = (
                f"a mean below the largest gap, and a ratio within it and from {low} to {high}"
            )
            self.findings.add(
                "steps", file, f"line {number}", fields, expected, (mean, largest, ratio, outside)
            )

    def _records(
        self, file: Path, wanted: Sequence[tuple[Any, ...]]
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        """Records of an evaluation file; missing, doubled or re-ordered episodes are breaks."""
        keys = []
        for number, record in read_lines(file):
            key = record["key"]
            keys.append(
                tuple(key[name] for name in ("policy", "step", "split", "task", "trial", "seed"))
            )
            yield number, record
        for number, (expected, found) in enumerate(zip(wanted, keys, strict=False), 1):
            self.findings.equal("episodes", file, f"line {number}", "key", expected, found)
        self.findings.equal("episodes", file, "", "number of episodes", len(wanted), len(keys))

    def _episode(
        self,
        file: Path,
        number: int,
        record: dict[str, Any],
        task: Task,
        protocol: Protocol,
        engine: str,
    ) -> Replay:
        found = replay(record, task, self.chat, protocol)
        self.findings.equal(
            "episodes", file, _name(number, record), "version", VERSION, record["version"]
        )
        self.findings.equal(
            "engine", file, _name(number, record), "engine", engine, record["engine"]
        )
        for kind, field, expected, claimed in found.mismatches:
            self.findings.add(kind, file, _name(number, record), field, expected, claimed)
        tokens = {"sampled tokens": found.sampled, "external tokens": found.external}
        self.findings.derived(
            file.parent, {"episodes": 1, "tool calls": len(found.calls), **tokens}
        )
        return found

    def _absent(
        self, file: Path, name: str, record: Mapping[str, Any], fields: Sequence[str]
    ) -> None:
        for field in fields:
            if field in record:
                self.findings.add(
                    "episodes", file, name, field, "no such field in an evaluation", record[field]
                )


def _reward(key: Mapping[str, Any], found: Replay, arm: Arm, weights: Reward) -> float:
    if arm.reward == "random":
        return (
            1.0
            if uniform("placebo", key["seed"], key["step"], key["task"], key["trial"]) < 0.5
            else 0.0
        )
    if arm.reward == "binary":
        return 1.0 if found.outcome["strict"] else 0.0
    return milestone_reward(found.outcome, weights)


def _mixed(
    rows: Sequence[tuple[Mapping[str, Any], Replay]],
    sampled: int,
    size: int,
    arm: Arm,
    weights: Reward,
) -> int:
    """Groups of `sampled` rows whose first `size` differ in the arm's reward."""
    rewards = [_reward(record["key"], found, arm, weights) for record, found in rows]
    return sum(
        len(set(rewards[start : start + size])) > 1 for start in range(0, len(rewards), sampled)
    )


def _parts(rows: Sequence[tuple[Mapping[str, Any], Replay]]) -> Parts:
    """What strict success consists of, from replays."""
    found = ((record["key"], replayed.outcome) for record, replayed in rows)
    return {
        (key["task"], key["trial"]): (bool(outcome["workflow"]), bool(outcome["answer_correct"]))
        for key, outcome in found
    }


def _agent_counts(rows: Sequence[tuple[Mapping[str, Any], Replay]], planned: int) -> dict[str, int]:
    """The agent measures, counted from replays; `planned` is the number of episodes that there must be."""
    outcomes = [found.outcome for _, found in rows]
    ends = Counter(outcome["end"] for outcome in outcomes)
    flags = {
        "strict_success": "strict",
        "valid_workflow": "workflow",
        "correct_answer": "answer_correct",
    }
    return {
        "episodes": len(rows),
        **{name: sum(bool(outcome[flag]) for outcome in outcomes) for name, flag in flags.items()},
        "lookup": sum(outcome["lookup"] for outcome in outcomes),
        "calculation": sum(outcome["calculation"] for outcome in outcomes),
        "tool_calls": sum(len(found.calls) for _, found in rows),
        "tool_errors": sum(outcome["tool_errors"] for outcome in outcomes),
        "malformed_finals": len(rows) - ends["answer"],
        "malformed_uncapped": ends["malformed"],
        **{cap: ends[cap] for cap in ("turn_cap", "token_cap", "observation_cap")},
        "assistant_tokens": sum(found.sampled for _, found in rows),
        "external_tokens": sum(found.external for _, found in rows),
        "infrastructure_errors": planned - len(rows),
    }


def read_lines(file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number, record) of a JSONL file. ValueError names the line that is truncated or no JSON."""
    with open(file, encoding="utf-8") as stream:
        for number, line in enumerate(stream, 1):
            try:
                record = json.loads(line)
            except ValueError:
                raise ValueError(f"line {number} is not JSON") from None
            if not line.endswith("\n"):
                raise ValueError(f"line {number} is truncated")
            yield number, record


def _name(number: int, record: Mapping[str, Any]) -> str:
    key = record["key"]
    return (
        f"line {number} ({key['policy']}, step {key['step']}, {key['task']}, trial {key['trial']})"
    )
