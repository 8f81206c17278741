"""Warm one arm up with one seed: supervised training of its LoRA on expert trajectories of the training tasks."""

import argparse
import tempfile
from pathlib import Path

from agentrl import adapter, config, manifest, policy, tasks, trajectory, warmup
from agentrl.freeze import Frozen
from agentrl.protocol import ChatProtocol, load_tokenizer

DEMONSTRATIONS = "demonstrations.jsonl"


def main() -> None:
    """Check what was frozen, play the expert, train, write adapter and demonstrations with their manifest."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arm", required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--arm-section", type=Path, required=True, help="config/arm-{arm}.json")
    parser.add_argument("--start", type=Path, required=True, help="the start policy's manifest.json")
    parser.add_argument("--tasks", type=Path, required=True)
    parser.add_argument("--freeze", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    with manifest.stage(args.out, "warm_up.py") as stage:
        frozen = Frozen(args.freeze)
        folder, _ = policy.check_policy(args.start)
        frozen.check({"data": args.tasks}, {"tokenizer": folder, "start": folder})
        arm = config.validate(manifest.read_json(args.arm_section), config.Arm, str(args.arm_section))
        if arm.warmup is None:
            raise warmup.WarmupError(f"{args.arm_section}: arm {args.arm!r} has no warm-up, so there is nothing to do")
        settings = arm.settings(frozen.section("training", config.TrainingSettings))
        protocol, device = frozen.section("protocol", config.Protocol), frozen.section("model", config.Model)
        chat = ChatProtocol(load_tokenizer(folder))
        name = f"{args.arm}/seed-{args.seed}"
        played = warmup.demonstrate(tasks.read_tasks(args.tasks), chat, protocol, name, args.seed)
        with tempfile.TemporaryDirectory() as work:
            model = policy.load_model(folder, device)
            adapted, log = warmup.train(model, chat, played, arm.warmup, settings, device, args.seed, Path(work))
        adapter.save(adapted, args.out / adapter.FOLDER)
        with open(args.out / DEMONSTRATIONS, "w", encoding="utf-8") as stream:
            trajectory.append(stream, played)
        inputs = {"start": args.start, "tasks": args.tasks, "freeze": args.freeze, "arm": args.arm_section}
        ran_with = {**frozen.content["config"], "training": settings.model_dump(mode="json"), "arm": arm.content(), "seed": args.seed}
        facts = {"policy": name, "demonstrations": len(played), "loss": log}
        stage.manifest(inputs, [*adapter.FILES, DEMONSTRATIONS], ran_with, facts)


if __name__ == "__main__":
    manifest.run(main)
