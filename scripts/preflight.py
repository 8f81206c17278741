"""Sample a few groups of training tasks from the start policy, before anything is trained."""

import argparse
from pathlib import Path

from agentrl.engine.loading import open_engine
from agentrl.evidence.files import read_json, write_json
from agentrl.evidence.freeze import Frozen
from agentrl.evidence.section import validate
from agentrl.evidence.stage import open_stage, run_command
from agentrl.policy.checkpoint import check_policy
from agentrl.policy.settings import Model
from agentrl.rollout import trajectory
from agentrl.rollout.loop import Rollout
from agentrl.rollout.settings import Decoding, Protocol
from agentrl.tasks.families import read_tasks
from agentrl.training import preflight
from agentrl.training.settings import Preflight, Reward, TrainingSettings


def main() -> None:
    """Check what was frozen for training, play the groups with training's engine and batch shape, write episodes and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--section", type=Path, required=True, help="config/preflight.json")
    parser.add_argument(
        "--start", type=Path, required=True, help="the start policy's manifest.json"
    )
    parser.add_argument("--tasks", type=Path, required=True, help="the training tasks")
    parser.add_argument("--freeze", type=Path, required=True, help="freeze/train.json")
    parser.add_argument("--report", type=Path, required=True, help="plan/preflight.json")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    with open_stage(args.out, "preflight.py") as stage:
        frozen = Frozen(args.freeze)
        folder, _ = check_policy(args.start)
        frozen.check({"data": args.tasks}, {"tokenizer": folder, "start": folder})
        section = validate(read_json(args.section), Preflight, str(args.section))
        settings, decoding = (
            frozen.section("training", TrainingSettings),
            frozen.section("decoding", Decoding),
        )
        engine, chat = open_engine(folder, frozen.section("model", Model), decoding)
        rollout = Rollout(engine, chat, frozen.section("protocol", Protocol))
        played = []
        with open(args.out / "episodes.jsonl", "w", encoding="utf-8") as stream:
            for batch in preflight.play(
                rollout, read_tasks(args.tasks), section, settings.batch_size, decoding.seed
            ):
                trajectory.append(stream, batch)
                played += batch
        report = preflight.report(played, section, frozen.section("reward", Reward))
        write_json(args.report, report)
        print(preflight.rates(report), flush=True)
        stage.measured = engine.describe()
        inputs = {
            "section": args.section,
            "start": args.start,
            "tasks": args.tasks,
            "freeze": args.freeze,
        }
        ran_with = {**frozen.content["config"], "preflight": section.model_dump(mode="json")}
        stage.manifest(
            inputs,
            ["episodes.jsonl"],
            ran_with,
            {"policy": preflight.POLICY, "engine": engine.name, "report": report},
        )


if __name__ == "__main__":
    run_command(main)
