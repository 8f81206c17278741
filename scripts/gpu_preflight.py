"""Look at the node that GPU rules run on, and refuse it before a model is loaded."""

import argparse
from pathlib import Path

from agentrl.cluster import node
from agentrl.evidence.files import read_json, write_json
from agentrl.evidence.provenance import environment
from agentrl.evidence.stage import open_stage, run_command


def main() -> None:
    """Check packages, disk and GPU; write what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--section", type=Path, required=True, help="config/model.json")
    parser.add_argument(
        "--lock",
        type=Path,
        required=True,
        help="the file in envs/ that pins the packages of GPU rules",
    )
    parser.add_argument(
        "--checkpoints", type=int, required=True, help="merged checkpoints that the study writes"
    )
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    with open_stage(args.out, "gpu_preflight.py"):
        section = read_json(args.section)
        report = node.check(section, args.lock, args.out, args.checkpoints)
        judged = {"model": section, "checkpoints": args.checkpoints, "environment": environment()}
        write_json(args.out / "report.json", report | judged)
        print(node.sentence(report, args.lock))


if __name__ == "__main__":
    run_command(main)
