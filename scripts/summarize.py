"""Write the study's summary from its manifests and comparisons, and beside it where its stages ran."""

import argparse
from pathlib import Path

from agentrl.evidence.files import read_json, write_json, write_text
from agentrl.evidence.section import validate
from agentrl.evidence.stage import open_stage, run_command
from agentrl.judgement.settings import Statistics
from agentrl.report import runs
from agentrl.report.summary import render, summarize


def main() -> None:
    """Collect, render, write summary.json and summary.md with their manifest; and runs.json and runs.md, which no manifest holds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--study", type=Path, required=True, help="results/{study}")
    parser.add_argument("--section", type=Path, required=True, help="config/statistics.json")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    with open_stage(args.out, "summarize.py") as stage:
        settings = validate(read_json(args.section), Statistics, str(args.section))
        summary = summarize(args.study, settings)
        write_json(args.out / "summary.json", summary)
        write_text(args.out / "summary.md", render(summary))
        ran = runs.collect(args.study)
        write_json(args.out / runs.DATA, ran)
        write_text(args.out / runs.TEXT, runs.render(ran))
        inputs = {
            role: args.study / role / "manifest.json"
            for role in ("plan", "preflight", "statistics")
        }
        inputs["verified"] = args.study / "verify" / "verify.json"
        stage.manifest(inputs, ["summary.json", "summary.md"], settings.model_dump(mode="json"))


if __name__ == "__main__":
    run_command(main)
