"""Warm one arm up with one seed: supervised training of its LoRA on expert trajectories of the training tasks."""

import argparse
import tempfile
from pathlib import Path

from agentrl.evidence.files import read_json
from agentrl.evidence.freeze import Frozen
from agentrl.evidence.section import validate
from agentrl.evidence.stage import open_stage, run_command
from agentrl.policy import adapter
from agentrl.policy.checkpoint import check_policy
from agentrl.policy.loading import load_model
from agentrl.policy.settings import Model
from agentrl.rollout import trajectory
from agentrl.rollout.chat import ChatProtocol, load_tokenizer
from agentrl.rollout.settings import Protocol
from agentrl.tasks.families import read_tasks
from agentrl.training import warmup
from agentrl.training.settings import Arm, TrainingSettings

DEMONSTRATIONS = "demonstrations.jsonl"


def main() -> None:
    """Check what was frozen, play the expert, train, write adapter and demonstrations with their manifest."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arm", required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--arm-section", type=Path, required=True, help="config/arm-{arm}.json")
    parser.add_argument(
        "--start", type=Path, required=True, help="the start policy's manifest.json"
    )
    parser.add_argument("--tasks", type=Path, required=True)
    parser.add_argument("--freeze", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    with open_stage(args.out, "warm_up.py") as stage:
        frozen = Frozen(args.freeze)
        folder, _ = check_policy(args.start)
        frozen.check({"data": args.tasks}, {"tokenizer": folder, "start": folder})
        arm = validate(read_json(args.arm_section), Arm, str(args.arm_section))
        if arm.warmup is None:
            raise warmup.WarmupError(
                f"{args.arm_section}: arm {args.arm!r} has no warm-up, so there is nothing to do"
            )
        settings = arm.settings(frozen.section("training", TrainingSettings))
        protocol, device = frozen.section("protocol", Protocol), frozen.section("model", Model)
        chat = ChatProtocol(load_tokenizer(folder))
        name = f"{args.arm}/seed-{args.seed}"
        played = warmup.demonstrate(read_tasks(args.tasks), chat, protocol, name, args.seed)
        with tempfile.TemporaryDirectory() as work:
            model = load_model(folder, device)
            adapted, log = warmup.train(
                model, chat, played, arm.warmup, settings, device, args.seed, Path(work)
            )
        adapter.save(adapted, args.out / adapter.FOLDER)
        with open(args.out / DEMONSTRATIONS, "w", encoding="utf-8") as stream:
            trajectory.append(stream, played)
        inputs = {
            "start": args.start,
            "tasks": args.tasks,
            "freeze": args.freeze,
            "arm": args.arm_section,
        }
        ran_with = {
            **frozen.content["config"],
            "training": settings.model_dump(mode="json"),
            "arm": arm.content(),
            "seed": args.seed,
        }
        facts = {"policy": name, "demonstrations": len(played), "loss": log}
        stage.manifest(inputs, [*adapter.FILES, DEMONSTRATIONS], ran_with, facts)


if __name__ == "__main__":
    run_command(main)
