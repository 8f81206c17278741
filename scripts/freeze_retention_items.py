"""Choose and freeze the retention items: MGSM German, or generated word problems for the demo."""

import argparse
from pathlib import Path

from agentrl.demo import wordproblems
from agentrl.evaluation import recorded, retention
from agentrl.evaluation.settings import Retention
from agentrl.evidence.files import read_json
from agentrl.evidence.hashing import sha256
from agentrl.evidence.section import validate
from agentrl.evidence.stage import open_stage, run_command


def main() -> None:
    """Read the section, collect the source's items, select, write items.jsonl with its manifest."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--section", type=Path, required=True, help="config/retention.json")
    parser.add_argument(
        "--ids-from",
        type=Path,
        nargs="?",
        help="file that names the items, if the section does not",
    )
    parser.add_argument(
        "--cache", type=Path, required=True, help="folder that keeps a fetched source"
    )
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    with open_stage(args.out, "freeze_retention_items.py") as stage:
        section = validate(read_json(args.section), Retention, str(args.section))
        items = source_items(section, args.cache)
        items = (
            recorded.named(items, args.ids_from, section)
            if args.ids_from
            else retention.select(items, section)
        )
        retention.write_items(args.out / "items.jsonl", items)
        facts = {"items": len(items), "source": section.source} | (
            {"ids_from": sha256(args.ids_from)} if args.ids_from else {}
        )
        stage.manifest(
            {"section": args.section}, ["items.jsonl"], section.model_dump(mode="json"), facts
        )


def source_items(section: Retention, cache: Path) -> list[retention.Item]:
    """Every item of the configured source."""
    if section.source == "mgsm":
        return retention.mgsm_items(section.path, cache)
    return [
        retention.Item(**problem.as_item())
        for problem in wordproblems.problems(4 * section.items, section.seed, held_out=True)
    ]


if __name__ == "__main__":
    run_command(main)
