"""Write the study's summary from its manifests and comparisons, and beside it where its stages ran."""

import argparse
from pathlib import Path

from agentrl import config, manifest, report, runs


def main() -> None:
    """Collect, render, write summary.json and summary.md with their manifest; and runs.json and runs.md, which no manifest holds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--study", type=Path, required=True, help="results/{study}")
    parser.add_argument("--section", type=Path, required=True, help="config/statistics.json")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    with manifest.stage(args.out, "summarize.py") as stage:
        settings = config.validate(manifest.read_json(args.section), config.Statistics, str(args.section))
        summary = report.summarize(args.study, settings)
        manifest.write_json(args.out / "summary.json", summary)
        manifest.write_text(args.out / "summary.md", report.render(summary))
        ran = runs.collect(args.study)
        manifest.write_json(args.out / runs.DATA, ran)
        manifest.write_text(args.out / runs.TEXT, runs.render(ran))
        inputs = {role: args.study / role / "manifest.json" for role in ("plan", "preflight", "statistics")}
        inputs["verified"] = args.study / "verify" / "verify.json"
        stage.manifest(inputs, ["summary.json", "summary.md"], settings.model_dump(mode="json"))


if __name__ == "__main__":
    manifest.run(main)
