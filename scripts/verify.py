"""Verify a results folder: re-execute every tool call, recompute every number, check every hash. No GPU, no model, no network."""

import argparse
import json
import os
import sys
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

from agentrl.evidence.files import write_json
from agentrl.evidence.stage import run_command
from agentrl.verify.audit import verify


def main() -> None:
    """Verify, print counts and the first break of each kind; exit 1 if anything broke."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("study", type=Path, help="results/{study}")
    parser.add_argument(
        "--checkpoints", action="store_true", help="also hash weights and re-audit every merge"
    )
    parser.add_argument(
        "--strict",
        action="store_true",
        help="a stage whose code cannot be compared with a clean commit here is a break",
    )
    parser.add_argument(
        "--before-summary",
        action="store_true",
        help="leave the summary out: the rule that writes it runs next",
    )
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    parser.add_argument("--out", type=Path, help="also write them as verify.json to this folder")
    args = parser.parse_args()
    if not (args.study / "start" / "manifest.json").is_file():
        sys.exit(
            f"error: {args.study}: no start/manifest.json, so no study; give a folder such as results/demo"
        )
    findings = verify(
        args.study, args.checkpoints, summary=not args.before_summary, strict=args.strict
    )
    result = findings.as_json()
    if args.out:
        write_json(args.out / "verify.json", result)
    if args.json:
        print(json.dumps(result, indent=1))
    else:
        print(", ".join(f"{count} {name}" for name, count in result["checked"].items()))
        for note in findings.notes:
            print(f"note: {note}")
        for found in findings.first.values():
            print(f"BROKEN {found} ({findings.breaks[found.kind]} of this kind)")
        print(
            f"{args.study}: {'every claim follows from the evidence' if findings.passed else 'verification FAILED'}"
        )
    sys.exit(not findings.passed)


if __name__ == "__main__":
    run_command(main)
