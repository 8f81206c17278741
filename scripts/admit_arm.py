"""Judge from the preflight whether one arm could learn; refuse it by name if not."""

import argparse
from pathlib import Path

from agentrl import config, manifest, preflight, trajectory


def main() -> None:
    """Check the preflight's files, count the arm's mixed groups, write its verdict."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arm", required=True)
    parser.add_argument("--arm-section", type=Path, required=True, help="config/arm-{arm}.json")
    parser.add_argument("--preflight", type=Path, required=True, help="the preflight's manifest.json")
    parser.add_argument("--out", type=Path, required=True, help="preflight/admitted/{arm}.json")
    args = parser.parse_args()
    recorded = manifest.read_json(args.preflight)
    manifest.check_files(args.preflight.parent, recorded["outputs"], args.preflight)
    origin = str(args.preflight)
    arm = config.validate(manifest.read_json(args.arm_section), config.Arm, str(args.arm_section))
    section = config.validate(recorded["config"]["preflight"], config.Preflight, origin)
    base = config.validate(recorded["config"]["training"], config.TrainingSettings, origin)
    weights = config.validate(recorded["config"]["reward"], config.Reward, origin)
    episodes = list(trajectory.read(args.preflight.parent / "episodes.jsonl"))
    manifest.write_json(args.out, preflight.verdict(episodes, args.arm, arm, section, base, weights))


if __name__ == "__main__":
    manifest.run(main)
