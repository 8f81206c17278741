"""Take over an earlier study's evaluation of the start policy: compare all that it consumed with this study's, then copy it as it is."""

import argparse
import shutil
from pathlib import Path

from agentrl.evaluation.adoption import Earlier
from agentrl.evidence.files import read_json
from agentrl.evidence.hashing import sha256
from agentrl.evidence.stage import open_stage, run_command


def main() -> None:
    """Compare, copy the records, take over the manifest."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--earlier", type=Path, required=True, help="results/{study} of the earlier study"
    )
    parser.add_argument(
        "--policy", type=Path, required=True, help="this study's start/manifest.json"
    )
    parser.add_argument("--freeze", type=Path, required=True)
    parser.add_argument(
        "--out", type=Path, required=True, help="policies/baseline/{measure} of this study"
    )
    data = parser.add_mutually_exclusive_group(required=True)
    data.add_argument("--tasks", type=Path, help="this study's tasks of the split")
    data.add_argument("--items", type=Path, help="this study's retention items")
    args = parser.parse_args()
    with open_stage(args.out, "adopt_baseline.py") as stage:
        earlier = Earlier(args.earlier, args.out.name)
        given = {
            "policy": args.policy,
            "freeze": args.freeze,
            "tasks": args.tasks,
            "items": args.items,
        }
        records = earlier.check({role: path for role, path in given.items() if path is not None})
        for name in records:
            shutil.copyfile(earlier.folder / name, args.out / name)
        ran = earlier.folder / "provenance.json"
        stage.measured["adopted"] = {
            "study": args.earlier.name,
            "manifest": sha256(earlier.folder / "manifest.json"),
            "provenance": read_json(ran) if ran.is_file() else None,
        }
        stage.take_over(earlier.folder / "manifest.json")
        print(
            f"{earlier.folder}: taken over, {', '.join(records)} and manifest.json as they are",
            flush=True,
        )


if __name__ == "__main__":
    run_command(main)
