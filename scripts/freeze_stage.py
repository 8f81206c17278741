"""Freeze one stage: hash exactly what it consumes, with its configuration and the upstream code it rests on."""

import argparse
from pathlib import Path

from agentrl.evidence import freeze
from agentrl.evidence.files import read_json, write_json
from agentrl.evidence.stage import run_command
from agentrl.policy.checkpoint import check_checkpoint, check_policy
from agentrl.policy.files import TOKENIZER_FILES


def main() -> None:
    """Hash files, tokenizer and (for training) the start checkpoint; write freeze/{stage}.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stage", required=True, help="train, agent-dev, agent-test or retention")
    parser.add_argument("--data", type=Path, required=True, help="tasks.jsonl or items.jsonl")
    parser.add_argument(
        "--baseline", type=Path, nargs="?", help="recorded retention baseline, if there is one"
    )
    parser.add_argument(
        "--start", type=Path, required=True, help="the start policy's manifest.json"
    )
    parser.add_argument(
        "--sections", type=Path, nargs="+", required=True, help="config/{section}.json files"
    )
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    folder, _ = check_policy(args.start)
    folders = {"tokenizer": (folder, freeze.present(folder, TOKENIZER_FILES))}
    if args.stage == "train":
        folders["start"] = (folder, check_checkpoint(folder))
    files = {"data": args.data} | ({"baseline": args.baseline} if args.baseline else {})
    config = {path.stem: read_json(path) for path in args.sections}
    write_json(args.out, freeze.freeze(args.stage, files, folders, config))


if __name__ == "__main__":
    run_command(main)
