"""Time verification on a synthetic study of the pilot's size, and of a multiple of it.

The study is made without a model: a scripted policy plays expert and failing episodes through the real rollout, environment and
manifests, on a given tokenizer, so that records are as long and as many as a real study's.
"""

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from agentrl.engine.scripted import ScriptedEngine
from agentrl.evaluation import retention
from agentrl.evaluation.agent import episodes, measures
from agentrl.evidence import freeze
from agentrl.evidence.files import read_json, write_json, write_text
from agentrl.evidence.provenance import environment
from agentrl.evidence.section import merge
from agentrl.evidence.stage import Stage, run_command
from agentrl.rollout import trajectory
from agentrl.rollout.chat import ChatProtocol, load_tokenizer
from agentrl.rollout.loop import Rollout
from agentrl.rollout.sampler import Request
from agentrl.rollout.trajectory import Key, Trajectory
from agentrl.study.config import validate_study
from agentrl.study.sections import canonical, sections
from agentrl.study.strictyaml import read_yaml
from agentrl.tasks.families import Task, generate, lookup_call, write_tasks
from agentrl.training.expert import calculator_call, encode_turn
from agentrl.training.health import EPSILON, StepRecord, gates, group_advantages
from agentrl.training.reward import shaped
from agentrl.verify import arguments as verify_arguments
from agentrl.verify.gates import loss_range
from agentrl.verify.merges import CONTEXTS, LOGIT_TOLERANCE
from agentrl.verify.replay import runs
from benchmarks import ROOT

CANDIDATE = "pilot/seed-42"
TARGETS = 14
"""Weights that the adapter, which nobody trained, would have."""
SENTENCE = "Ich überlege Schritt für Schritt, was hier verlangt ist, und prüfe die Angaben. "
THINKING = 0.7
"""Share of the budget that an episode thinks, in thirds; calls, observations and the answer take the rest."""


def main() -> None:
    """Make studies of both sizes, verify each in a fresh process, print a table and keep the numbers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--tokenizer", type=Path, required=True, help="folder with a Qwen3 tokenizer"
    )
    parser.add_argument("--scales", type=int, nargs="+", default=[1, 100])
    parser.add_argument("--out", type=Path, help="folder for verify.json")
    args = parser.parse_args()
    rows = []
    for scale in args.scales:
        with tempfile.TemporaryDirectory() as folder:
            study = Path(folder) / "study"
            Synthetic(study, args.tokenizer, scale).make()
            rows.append({"scale": scale, **measure(study)})
            print(json.dumps(rows[-1]), flush=True)
    result = {
        "rows": rows,
        "machine": platform.platform(),
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
    }
    if args.out:
        write_json(args.out / "verify.json", result)


def measure(study: Path) -> dict[str, Any]:
    """Wall seconds, CPU seconds and peak memory of the command, and what it checked."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    command = [sys.executable, str(ROOT / "scripts/verify.py"), str(study), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    found = json.loads(done.stdout)
    if not found["passed"]:
        sys.exit(f"error: the synthetic study does not verify: {found['breaks'][0]}")
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {
        "seconds": round(time.monotonic() - began, 2),
        "cpu_seconds": round(cpu, 2),
        "peak_mb": after.ru_maxrss >> 10,
        **{
            name: found["checked"][name]
            for name in ("episodes", "answers", "sampled tokens", "external tokens", "tool calls")
        },
    }


class Synthetic:
    """A study as its stages would have left it: 64 training and 64 agent episodes, 128 answers, times `scale`."""

    def __init__(self, study: Path, tokenizer: Path, scale: int) -> None:
        raw = read_yaml(ROOT / "config.yaml")
        changes = {
            "training": {"steps": 16 * scale},
            "evaluation": {"splits": ["test"], "trials": scale},
            "arms": {"placebo": None},
        }
        merged = merge(raw, changes)
        merged["arms"] = {"pilot": raw["arms"]["pilot"]}
        merged["model"] |= {"device": "cpu", "dtype": "float32"}
        merged["retention"] |= {"source": "word-problems", "items": 64 * scale}
        self.study, self.settings = study, validate_study(merged)
        self.sections = sections(self.settings)
        self.source, self.chat = tokenizer, ChatProtocol(load_tokenizer(tokenizer))
        self.rollout = Rollout(
            ScriptedEngine(self._speak, self.chat.stop_ids), self.chat, self.settings.protocol
        )
        self.known: dict[str, Task] = {}
        sentence = len(self.chat.tokenizer.encode(SENTENCE, add_special_tokens=False))
        self.thought = SENTENCE * max(
            1, int(THINKING * self.settings.protocol.budget / 3 / sentence)
        )

    def make(self) -> None:
        """Write every folder of the study."""
        for name, content in self.sections.items():
            write_text(self.study / "config" / f"{name}.json", canonical(content))
        write_json(self.study / "config" / "design.json", {"candidates": [CANDIDATE]})
        here = environment()
        found = {"packages": here["packages"], "weights": 0, "free_disk": 1 << 40, "gpu": None}
        report = {"model": self.sections["model"], "checkpoints": 1, "environment": here, **found}
        write_json(self.study / "preflight" / "gpu" / "report.json", report)
        self._start()
        self._tasks()
        self._freezes()
        self._training()
        for policy, steps in (("baseline", 0), (CANDIDATE, self.settings.training.steps)):
            self._agent(policy, steps)
            self._answers(policy, steps)
        self._statistics()

    def _stage(self, folder: str, command: str) -> Stage:
        (self.study / folder).mkdir(parents=True, exist_ok=True)
        return Stage(self.study / folder, command)

    def _start(self) -> None:
        stage = self._stage("start", "record_start.py")
        (stage.folder / "tokenizer").mkdir()
        names = [
            p.name
            for p in self.source.iterdir()
            if p.name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
        ]
        for name in names:
            (stage.folder / "tokenizer" / name).write_bytes((self.source / name).read_bytes())
        outputs = [f"tokenizer/{name}" for name in names]
        stage.manifest(
            {"section": self.study / "config/model.json"},
            outputs,
            self.sections["model"],
            {"steps": 0},
        )

    def _tasks(self) -> None:
        for split in ("train", "test"):
            stage = self._stage(f"tasks/{split}", "generate_tasks.py")
            found = generate(self.settings.tasks, split, getattr(self.settings.tasks.splits, split))
            self.known |= {task.id: task for task in found}
            write_tasks(stage.folder / "tasks.jsonl", found)
            section = self.study / f"config/tasks-{split}.json"
            stage.manifest(
                {"section": section},
                ["tasks.jsonl"],
                self.sections[f"tasks-{split}"],
                {"tasks": len(found)},
            )
        stage = self._stage("retention", "freeze_retention_items.py")
        self.items = [
            retention.Item(f"item-{n}", f"Was ist {n} plus {n}?", 2 * n)
            for n in range(self.settings.retention.items)
        ]
        retention.write_items(stage.folder / "items.jsonl", self.items)
        stage.manifest(
            {"section": self.study / "config/retention.json"},
            ["items.jsonl"],
            self.sections["retention"],
            {},
        )

    def _freezes(self) -> None:
        names = {
            "train": ("model", "protocol", "decoding", "reward", "training"),
            "agent-test": ("model", "protocol", "decoding", "evaluation"),
            "retention": ("model", "retention"),
        }
        for stage, wanted in names.items():
            split = stage.removeprefix("agent-")
            data = (
                self.study / "retention/items.jsonl"
                if stage == "retention"
                else self.study / f"tasks/{split}/tasks.jsonl"
            )
            folder = self.study / "start/tokenizer"
            folders = {"tokenizer": (folder, sorted(p.name for p in folder.iterdir()))}
            folders |= {"start": (folder, [])} if stage == "train" else {}
            content = freeze.freeze(
                stage, {"data": data}, folders, {name: self.sections[name] for name in wanted}
            )
            write_json(self.study / f"freeze/{stage}.json", content)

    def _training(self) -> None:
        settings, seed = self.settings.training, 42
        stage = self._stage(f"arms/{CANDIDATE}/train", "train.py")
        train = [task for task in self.known.values() if task.split == "train"]
        records: list[Trajectory] = []
        steps = []
        for step in range(settings.steps):
            task = train[step % len(train)]
            keys = [
                Key(CANDIDATE, step, "train", task.id, trial, seed)
                for trial in range(settings.group_size)
            ]
            played = [
                replace(t, reward=shaped(t.outcome, self.settings.reward))
                for t in self.rollout.play([task] * len(keys), keys)
            ]
            advantages = group_advantages([t.reward or 0.0 for t in played], settings)
            pairs = zip(played, advantages, strict=True)
            batch = [
                replace(t, advantage=round(a, 6), loss_runs=runs(t.loss_mask)) for t, a in pairs
            ]
            records += batch
            loss, _ = loss_range(
                [t.to_json() for t in batch],
                0.0,
                settings.model_dump(mode="json"),
                self.settings.protocol.budget,
            )
            steps.append(
                replace(StepRecord.of(batch, settings.group_size), loss=loss, grad_norm=1.0)
            )
        with open(stage.folder / "episodes.jsonl", "w", encoding="utf-8") as stream:
            trajectory.append(stream, records)
        write_text(
            stage.folder / "steps.jsonl", "".join(json.dumps(asdict(s)) + "\n" for s in steps)
        )
        frozen = read_json(self.study / "freeze/train.json")["config"]
        files = {
            "start": "start/manifest.json",
            "tasks": "tasks/train/tasks.jsonl",
            "freeze": "freeze/train.json",
            "arm": "config/arm-pilot.json",
        }
        inputs = {role: self.study / name for role, name in files.items()}
        arm = {**frozen, "arm": self.sections["arm-pilot"], "seed": seed}
        trained_with = {
            "grpo_config": verify_arguments.trainer(arm),
            "lora_config": verify_arguments.lora(arm["training"]["lora"]),
        }
        facts = {
            "policy": CANDIDATE,
            "engine": "scripted",
            "advantage_epsilon": EPSILON,
            **trained_with,
        }
        write_json(stage.folder / "adapter" / "adapter_config.json", trained_with["lora_config"])
        stage.manifest(
            inputs,
            ["episodes.jsonl", "steps.jsonl"],
            arm,
            facts | gates(steps, 2 * TARGETS, [], settings),
        )
        merged = self._stage(f"arms/{CANDIDATE}/merged", "merge_adapter.py")
        inputs = {
            "start": inputs["start"],
            "train": stage.folder / "manifest.json",
            "section": self.study / "config/model.json",
        }
        audit = {
            "tensors": TARGETS + 1, "targets": TARGETS, "changed": TARGETS, "identical": 1, "tied_head": False, "update_kept": 1.0,
            "weights_moved": 1.0, "largest_logit_difference": 0.0, "stored_dtype": "float32", "tolerance": LOGIT_TOLERANCE["float32"],
            "contexts": CONTEXTS,
        }  # fmt: skip
        write_json(merged.folder / "merge.json", audit)
        write_json(self.study / "start" / "model" / "config.json", {"tie_word_embeddings": False})
        merged.manifest(
            inputs, ["merge.json"], self.sections["model"], {"steps": len(steps), "audit": audit}
        )

    def _model(self, policy: str) -> Path:
        return (
            self.study
            / ("start" if policy == "baseline" else f"arms/{policy}/merged")
            / "manifest.json"
        )

    def _agent(self, policy: str, steps: int) -> None:
        stage = self._stage(f"policies/{policy}/agent-test", "evaluate_agent.py")
        split = [task for task in self.known.values() if task.split == "test"]
        trials = self.settings.evaluation.trials
        played: list[Trajectory] = []
        with open(stage.folder / "episodes.jsonl", "w", encoding="utf-8") as stream:
            for batch in episodes(
                self.rollout, split, trials, 32, policy, steps, self.settings.decoding.seed
            ):
                trajectory.append(stream, batch)
                played += batch
        freeze_file = self.study / "freeze/agent-test.json"
        inputs = {
            "policy": self._model(policy),
            "freeze": freeze_file,
            "tasks": self.study / "tasks/test/tasks.jsonl",
        }
        facts = {
            "policy": policy,
            "engine": "scripted",
            "counts": measures(played, len(split) * trials),
        }
        stage.manifest(inputs, ["episodes.jsonl"], read_json(freeze_file)["config"], facts)

    def _answers(self, policy: str, steps: int) -> None:
        stage = self._stage(f"policies/{policy}/retention", "evaluate_retention.py")
        engine = ScriptedEngine(lambda _: self._turn("<answer>4</answer>"), self.chat.stop_ids)
        found = [
            a
            for batch in retention.answers(
                engine, self.chat, self.items, self.settings.retention, policy, steps
            )
            for a in batch
        ]
        lines = (json.dumps(asdict(answer), sort_keys=True) + "\n" for answer in found)
        write_text(stage.folder / "answers.jsonl", "".join(lines))
        freeze_file = self.study / "freeze/retention.json"
        inputs = {
            "policy": self._model(policy),
            "freeze": freeze_file,
            "items": self.study / "retention/items.jsonl",
        }
        facts = {
            "policy": policy,
            "engine": "scripted",
            "counts": retention.measures(found, len(self.items)),
        }
        stage.manifest(inputs, ["answers.jsonl"], read_json(freeze_file)["config"], facts)

    def _statistics(self) -> None:
        evaluated = [
            self.study / f"policies/{p}/{m}/manifest.json"
            for p in ("baseline", CANDIDATE)
            for m in ("agent-test", "retention")
        ]
        command = [
            sys.executable,
            str(ROOT / "scripts/compare.py"),
            "--section",
            str(self.study / "config/statistics.json"),
        ]
        subprocess.run(
            [
                *command,
                "--out",
                str(self.study / "statistics"),
                "--evaluations",
                *map(str, evaluated),
            ],
            check=True,
        )

    def _turn(self, content: str) -> list[int]:
        return encode_turn(self.chat, f"<think>\n{self.thought}\n</think>\n\n{content}")

    def _speak(self, request: Request) -> list[int]:
        """Expert on even trials; on odd ones the last turn forgets its answer tag."""
        *_, name, trial, turn = request.key
        task = self.known[str(name)]
        first, second = task.facts.values()
        last = f"<answer>{task.answer}</answer>" if int(trial) % 2 == 0 else "fertig"
        return self._turn(
            (lookup_call(task.record_id), calculator_call(f"{first} * {second}"), last)[int(turn)]
        )


if __name__ == "__main__":
    run_command(main)
