"""Write one configuration section, handed over as canonical JSON, to the file that jobs read."""

import argparse
import json
from pathlib import Path

from agentrl.evidence.files import write_json
from agentrl.evidence.stage import run_command


def main() -> None:
    """Parse, check that it is JSON, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--content", required=True, help="canonical JSON of the section")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    write_json(args.out, json.loads(args.content))


if __name__ == "__main__":
    run_command(main)
