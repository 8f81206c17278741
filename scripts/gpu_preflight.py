"""Look at the node that GPU rules run on, and refuse it before a model is loaded."""

import argparse
from pathlib import Path

from agentrl import manifest, node
from agentrl.provenance import environment


def main() -> None:
    """Check packages, disk and GPU; write what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--section", type=Path, required=True, help="config/model.json")
    parser.add_argument("--lock", type=Path, required=True, help="the file in envs/ that pins the packages of GPU rules")
    parser.add_argument("--checkpoints", type=int, required=True, help="merged checkpoints that the study writes")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    with manifest.stage(args.out, "gpu_preflight.py"):
        report = node.check(manifest.read_json(args.section), args.lock, args.out, args.checkpoints)
        manifest.write_json(args.out / "report.json", report | {"environment": environment()})
        print(node.sentence(report, args.lock))


if __name__ == "__main__":
    manifest.run(main)
