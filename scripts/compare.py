"""Compare every candidate with the start policy, item by item, and judge every arm over its seeds."""

import argparse
from collections import defaultdict
from pathlib import Path

from agentrl import comparison, config, manifest, verdict


def main() -> None:
    """Read the evaluations, compare, judge, write comparison.json and verdict.json with their manifest."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--policies", type=Path, required=True)
    parser.add_argument("--candidates", nargs="+", required=True, help="{arm}/seed-{seed}")
    parser.add_argument("--measures", nargs="+", required=True, help="agent-dev, agent-test, retention")
    parser.add_argument("--placebos", nargs="*", default=[], help="arms whose reward is random")
    parser.add_argument("--section", type=Path, required=True, help="config/statistics.json")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    with manifest.stage(args.out, "compare.py") as stage:
        settings = config.validate(manifest.read_json(args.section), config.Statistics, str(args.section))
        arms = defaultdict(list)
        for name in args.candidates:
            arms[name.split("/")[0]].append(name)
        evaluations = comparison.load_study(args.policies, args.candidates, args.measures)
        manifest.write_json(args.out / "comparison.json", comparison.compare_study(evaluations, arms, args.measures, settings))
        scores = {key: evaluation.scores for key, evaluation in evaluations.items()}
        manifest.write_json(args.out / "verdict.json", verdict.judge(scores, arms, args.placebos, args.measures, settings))
        evaluated = ["baseline", *args.candidates]
        inputs = {f"{p}/{m}": args.policies / p / m / "manifest.json" for p in evaluated for m in args.measures}
        stage.manifest({"section": args.section, **inputs}, ["comparison.json", "verdict.json"], settings.model_dump(mode="json"))


if __name__ == "__main__":
    manifest.run(main)
