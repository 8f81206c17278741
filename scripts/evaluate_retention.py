"""Evaluate one policy's mathematics without tools: the same command for the start policy and for every candidate."""

import argparse
import json
import time
from dataclasses import asdict
from pathlib import Path

from agentrl.engine.loading import measured, open_engine
from agentrl.evaluation import retention
from agentrl.evaluation.settings import Retention
from agentrl.evidence.freeze import Frozen
from agentrl.evidence.stage import open_stage, run_command
from agentrl.policy.checkpoint import check_policy
from agentrl.policy.settings import Model


def main() -> None:
    """Check what was frozen, load the policy, answer the items, write answers and their counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", required=True, help="baseline or {arm}/seed-{seed}")
    parser.add_argument("--policy", type=Path, required=True, help="the policy's manifest.json")
    parser.add_argument("--items", type=Path, required=True)
    parser.add_argument("--freeze", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    with open_stage(args.out, "evaluate_retention.py") as stage:
        frozen = Frozen(args.freeze)
        folder, recorded = check_policy(args.policy)
        frozen.check({"data": args.items}, {"tokenizer": folder})
        items, section = retention.read_items(args.items), frozen.section("retention", Retention)
        engine, chat = open_engine(folder, frozen.section("model", Model), section.decoding)
        began, answered = time.monotonic(), []
        with open(args.out / "answers.jsonl", "w", encoding="utf-8") as stream:
            for batch in retention.answers(
                engine, chat, items, section, args.name, recorded["steps"]
            ):
                stream.writelines(
                    json.dumps(asdict(answer), sort_keys=True, separators=(",", ":")) + "\n"
                    for answer in batch
                )
                answered += batch
                print(
                    f"{args.name}: {len(answered)} of {len(items)} items, {sum(a.correct for a in answered)} correct",
                    flush=True,
                )
        seconds = time.monotonic() - began
        counts = retention.measures(answered, len(items))
        stage.measured = measured(engine, counts["assistant_tokens"], seconds)
        inputs = {"policy": args.policy, "freeze": args.freeze, "items": args.items}
        stage.manifest(
            inputs,
            ["answers.jsonl"],
            frozen.content["config"],
            {"policy": args.name, "engine": engine.name, "counts": counts},
        )


if __name__ == "__main__":
    run_command(main)
