"""Train one arm with one seed by GRPO on real tool interactions; resumes from its work folder after a kill."""

import argparse
import json
import os
import shutil
import time
from functools import partial
from pathlib import Path

os.environ.setdefault(
    "TRL_EXPERIMENTAL_SILENCE", "1"
)  # rollout_func is experimental in TRL 1.16; the version is pinned
os.environ.setdefault(
    "VLLM_LOGGING_LEVEL", "WARNING"
)  # TRL imports vLLM where it is installed, and vLLM reads this then


from agentrl.engine.choice import choose_engine
from agentrl.engine.loading import Training, open_engine, trained_model
from agentrl.evidence.files import check_files, read_json
from agentrl.evidence.freeze import Frozen
from agentrl.evidence.section import validate
from agentrl.evidence.stage import Stage, open_stage, run_command
from agentrl.evidence.work import WorkFolder
from agentrl.policy import adapter
from agentrl.policy.checkpoint import check_policy
from agentrl.policy.settings import Model
from agentrl.rollout.loop import Rollout
from agentrl.rollout.settings import Decoding, Protocol
from agentrl.tasks.families import read_tasks
from agentrl.training import grpo, health
from agentrl.training.reward import REWARDS
from agentrl.training.settings import Arm, Reward, TrainingSettings


def main() -> None:
    """Check what was frozen, train in the work folder, pass the health gates, publish adapter and evidence."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arm", required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--arm-section", type=Path, required=True, help="config/arm-{arm}.json")
    parser.add_argument(
        "--start", type=Path, required=True, help="the start policy's manifest.json"
    )
    parser.add_argument("--tasks", type=Path, required=True)
    parser.add_argument("--freeze", type=Path, required=True)
    parser.add_argument(
        "--warmup", type=Path, nargs="?", help="manifest.json of the arm's warm-up, if it has one"
    )
    parser.add_argument("--work", type=Path, required=True, help="resumable state, not an output")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    with open_stage(args.out, "train.py") as stage:
        frozen = Frozen(args.freeze)
        folder, _ = check_policy(args.start)
        frozen.check({"data": args.tasks}, {"tokenizer": folder, "start": folder})
        arm = validate(read_json(args.arm_section), Arm, str(args.arm_section))
        settings = arm.settings(frozen.section("training", TrainingSettings))
        name, chosen = (
            f"{args.arm}/seed-{args.seed}",
            choose_engine(frozen.section("model", Model), folder).name,
        )
        consumed = [
            file for file in (args.freeze, args.arm_section, args.warmup) if file is not None
        ]
        with WorkFolder(args.work, consumed, args.seed, "train.py", engine=chosen) as work:
            unchanged, trained_with = train(args, frozen, arm, settings, folder, work, stage)
            facts = publish(work, args.out, unchanged, settings)
            inputs = {
                "start": args.start,
                "tasks": args.tasks,
                "freeze": args.freeze,
                "arm": args.arm_section,
            }
            if args.warmup is not None:
                inputs["warmup"] = args.warmup
            effective = {
                "training": settings.model_dump(mode="json"),
                "arm": arm.content(),
                "seed": args.seed,
            }
            ran_with = {**frozen.content["config"], **effective}
            outputs = [*adapter.FILES, grpo.EPISODES, grpo.STEPS]
            stage.manifest(
                inputs,
                outputs,
                ran_with,
                {"policy": name, "engine": chosen, **trained_with, **facts},
            )
            work.remove()


def train(
    args: argparse.Namespace,
    frozen: Frozen,
    arm: Arm,
    settings: TrainingSettings,
    folder: Path,
    work: WorkFolder,
    stage: Stage,
) -> tuple[list[str], dict[str, object]]:
    """Run or resume GRPO and save the adapter in the work folder.

    Returns:
        Names of adapter tensors that did not change, and the effective arguments of the training.
    """
    decoding, protocol = frozen.section("decoding", Decoding), frozen.section("protocol", Protocol)
    device, split = frozen.section("model", Model), read_tasks(args.tasks)
    asked = Training(
        settings.batch_size, protocol.budget, settings.lora.r, [task.messages() for task in split]
    )
    engine, chat = open_engine(folder, device, decoding, asked)
    rollout = Rollout(engine, chat, protocol)
    reward = partial(REWARDS[arm.reward], frozen.section("reward", Reward))
    recorder = grpo.Recorder(
        rollout, split, reward, f"{args.arm}/seed-{args.seed}", args.seed, work.path, settings
    )
    model = trained_model(engine, folder, device)
    trainer = grpo.trainer(
        model, chat.tokenizer, recorder, settings, decoding, protocol.budget, device
    )
    trained_with = grpo.effective(trainer)
    if args.warmup is not None:
        check_files(args.warmup.parent, read_json(args.warmup)["outputs"], args.warmup)
        adapter.load(trainer.model, args.warmup.parent / adapter.FOLDER)
    initial = adapter.state(trainer.model)
    began = time.monotonic()
    work.resumed = grpo.train(trainer, work.path)
    seconds = round(time.monotonic() - began, 2)
    stage.measured = {
        "resumed_from_step": work.resumed,
        "training_seconds": seconds,
        **engine.describe(),
    }
    adapter.save(trainer.model, work.path / adapter.FOLDER)
    final = adapter.state(trainer.model)
    return [name for name, tensor in final.items() if tensor.equal(initial[name])], trained_with


def publish(
    work: WorkFolder, out: Path, unchanged: list[str], settings: TrainingSettings
) -> dict[str, object]:
    """Check the health gates, then copy adapter and evidence to the declared outputs."""
    steps = [
        health.StepRecord(**json.loads(line))
        for line in (work.path / grpo.STEPS).read_text(encoding="utf-8").splitlines()
    ]
    facts = health.gates(steps, adapter.count(work.path / adapter.FOLDER), unchanged, settings)
    for name in (*adapter.FILES, grpo.EPISODES, grpo.STEPS):
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(work.path / name, out / name)
    return facts


if __name__ == "__main__":
    run_command(main)
