"""Evaluate one policy as an agent on one split: the same command for the start policy and for every candidate."""

import argparse
import time
from pathlib import Path

from agentrl.engine.loading import measured, open_engine
from agentrl.evaluation.agent import episodes, measures
from agentrl.evaluation.settings import EvaluationShape
from agentrl.evidence import ledger
from agentrl.evidence.freeze import Frozen
from agentrl.evidence.hashing import sha256
from agentrl.evidence.stage import open_stage, run_command
from agentrl.policy.checkpoint import check_policy
from agentrl.policy.settings import Model
from agentrl.rollout import trajectory
from agentrl.rollout.loop import Rollout
from agentrl.rollout.settings import Decoding, Protocol
from agentrl.tasks.families import read_tasks


def main() -> None:
    """Check what was frozen, load the policy, play the split, write episodes and their counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", required=True, help="baseline or {arm}/seed-{seed}")
    parser.add_argument("--policy", type=Path, required=True, help="the policy's manifest.json")
    parser.add_argument("--tasks", type=Path, required=True)
    parser.add_argument("--freeze", type=Path, required=True)
    parser.add_argument("--study", help="name of the study, for the ledger")
    parser.add_argument(
        "--ledger", type=Path, help="results/ledger.jsonl; the look is recorded there"
    )
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    with open_stage(args.out, "evaluate_agent.py") as stage:
        frozen = Frozen(args.freeze)
        folder, recorded = check_policy(args.policy)
        frozen.check({"data": args.tasks}, {"tokenizer": folder})
        split = read_tasks(args.tasks)
        decoding, settings = (
            frozen.section("decoding", Decoding),
            frozen.section("evaluation", EvaluationShape),
        )
        engine, chat = open_engine(folder, frozen.section("model", Model), decoding)
        rollout = Rollout(engine, chat, frozen.section("protocol", Protocol))
        began, played = time.monotonic(), []
        with open(args.out / "episodes.jsonl", "w", encoding="utf-8") as stream:
            queue = episodes(
                rollout,
                split,
                settings.trials,
                settings.batch_size,
                args.name,
                recorded["steps"],
                decoding.seed,
            )
            for batch in queue:
                trajectory.append(stream, batch)
                played += batch
                done = sum(t.outcome.strict for t in played)
                print(
                    f"{args.name}: {len(played)} of {len(split) * settings.trials} episodes, {done} strict",
                    flush=True,
                )
        seconds = time.monotonic() - began
        counts = measures(played, len(split) * settings.trials)
        stage.measured = measured(engine, counts["assistant_tokens"], seconds)
        inputs = {"policy": args.policy, "freeze": args.freeze, "tasks": args.tasks}
        stage.manifest(
            inputs,
            ["episodes.jsonl"],
            frozen.content["config"],
            {"policy": args.name, "engine": engine.name, "counts": counts},
        )
        if args.ledger:
            files = {
                "split": args.tasks,
                "model": args.policy,
                "manifest": args.out / "manifest.json",
            }
            ledger.record(
                args.ledger,
                args.study,
                args.name,
                **{role: sha256(path) for role, path in files.items()},
            )


if __name__ == "__main__":
    run_command(main)
