"""Generate the frozen tasks of one split."""

import argparse
from pathlib import Path

from agentrl.evidence.files import read_json
from agentrl.evidence.section import validate
from agentrl.evidence.stage import open_stage, run_command
from agentrl.tasks.families import generate, write_tasks
from agentrl.tasks.settings import TaskSplit


def main() -> None:
    """Read the split's section, generate, write tasks.jsonl with its manifest."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--section", type=Path, required=True, help="config/tasks-{split}.json")
    parser.add_argument("--split", required=True)
    parser.add_argument("--out", type=Path, required=True, help="folder of the split")
    args = parser.parse_args()
    with open_stage(args.out, "generate_tasks.py") as stage:
        section = validate(read_json(args.section), TaskSplit, str(args.section))
        generated = generate(section, args.split, section.count)
        write_tasks(args.out / "tasks.jsonl", generated)
        stage.manifest(
            {"section": args.section},
            ["tasks.jsonl"],
            section.model_dump(mode="json"),
            {"tasks": len(generated)},
        )


if __name__ == "__main__":
    run_command(main)
