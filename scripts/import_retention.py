"""Take a retention baseline that was recorded elsewhere: compare it with this study by name, score its ids by this study's rule."""

import argparse
import json
import shutil
from dataclasses import asdict
from pathlib import Path

from agentrl.engine.choice import allowed
from agentrl.evaluation import recorded, retention
from agentrl.evidence.files import write_text
from agentrl.evidence.freeze import Frozen
from agentrl.evidence.stage import open_stage, run_command
from agentrl.policy.checkpoint import check_policy
from agentrl.policy.settings import Model
from agentrl.rollout.chat import ChatProtocol, load_tokenizer


def main() -> None:
    """Check what was frozen, compare, write answers and their counts as an evaluation does, and keep the file beside them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--recorded", type=Path, required=True, help=f"file in the format {recorded.FORMAT}"
    )
    parser.add_argument(
        "--policy", type=Path, required=True, help="the start policy's manifest.json"
    )
    parser.add_argument("--items", type=Path, required=True)
    parser.add_argument("--freeze", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    with open_stage(args.out, "import_retention.py") as stage:
        frozen = Frozen(args.freeze)
        folder, start = check_policy(args.policy)
        frozen.check({"data": args.items, "baseline": args.recorded}, {"tokenizer": folder})
        chat = ChatProtocol(load_tokenizer(folder))
        items = retention.read_items(args.items)
        source = recorded.Import(args.recorded, start, frozen.content, items, chat)
        engines = allowed(
            frozen.section("model", Model)
        )  # which of them candidates will use, only their machine knows; comparison checks
        answers = source.answers(
            source.content.engine if source.content.engine in engines else engines[0]
        )
        lines = [
            json.dumps(asdict(answer), sort_keys=True, separators=(",", ":")) + "\n"
            for answer in answers
        ]
        write_text(args.out / "answers.jsonl", "".join(lines))
        shutil.copyfile(args.recorded, args.out / recorded.NAME)
        inputs = {
            "policy": args.policy,
            "freeze": args.freeze,
            "items": args.items,
            "recorded": args.recorded,
        }
        counts = retention.measures(answers, len(items))
        facts = {"policy": recorded.POLICY, "engine": source.content.engine, "counts": counts}
        stage.manifest(inputs, ["answers.jsonl", recorded.NAME], frozen.content["config"], facts)
        print(
            f"{args.recorded}: {counts['items']} answers taken over, {counts['correct']} correct",
            flush=True,
        )


if __name__ == "__main__":
    run_command(main)
