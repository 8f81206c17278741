"""Print a finished study: its summary, where it ran and from which commit, and the seconds of every stage."""

import argparse
from pathlib import Path

from agentrl.evidence.files import read_json
from agentrl.evidence.stage import run_command
from agentrl.report import runs


def main() -> None:
    """Print summary.md and runs.md, then one line per stage from the status files, slowest first."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--study", type=Path, required=True, help="results/{study}")
    args = parser.parse_args()
    for page in (args.study / "summary" / name for name in ("summary.md", runs.TEXT)):
        if page.is_file():
            print(page.read_text(encoding="utf-8"))
    rows = [
        (read_json(path)["seconds"], path.parent.relative_to(args.study))
        for path in args.study.rglob("status.json")
    ]
    print("Seconds per stage (last run of each):")
    for seconds, stage in sorted(rows, reverse=True):
        print(f"{seconds:8.1f}  {stage}")
    print(
        f"{sum(seconds for seconds, _ in rows):8.1f}  in all, start-up of Python and Snakemake not counted"
    )


if __name__ == "__main__":
    run_command(main)
