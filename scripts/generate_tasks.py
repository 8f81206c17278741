"""Generate the frozen tasks of one split."""

import argparse
from pathlib import Path

from agentrl import config, manifest, tasks


def main() -> None:
    """Read the split's section, generate, write tasks.jsonl with its manifest."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--section", type=Path, required=True, help="config/tasks-{split}.json")
    parser.add_argument("--split", required=True)
    parser.add_argument("--out", type=Path, required=True, help="folder of the split")
    args = parser.parse_args()
    with manifest.stage(args.out, "generate_tasks.py") as stage:
        section = config.validate(manifest.read_json(args.section), config.TaskSplit, str(args.section))
        generated = tasks.generate(section, args.split, section.count)
        tasks.write_tasks(args.out / "tasks.jsonl", generated)
        stage.manifest({"section": args.section}, ["tasks.jsonl"], section.model_dump(mode="json"), {"tasks": len(generated)})


if __name__ == "__main__":
    manifest.run(main)
