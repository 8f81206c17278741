"""Print what verification says to every change of the tamper suite.

`python tests/verify/tamper_table.py results/micro > benchmarks/verify/tamper.md`

The study must be the finished micro study (`tests/micro.yaml`); it is copied for every change and stays untouched.
"""

import os
import shutil
import sys
import tempfile
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[2] / "scripts"), str(Path(__file__).parent)]

from test_verify import HASHED, RECOMPUTED, rehash  # noqa: E402 - the path comes first

from agentrl.verify.audit import verify  # noqa: E402


def main(study: Path) -> None:
    """One row per change: the break that names it, with all hashes regenerated where recomputation must find it."""
    print("| change | hashes | what verify said |\n| --- | --- | --- |")
    for name, (change, kind) in {**RECOMPUTED, **HASHED}.items():
        forged = name in RECOMPUTED
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(shutil.copytree(study, Path(folder) / "study", copy_function=os.link))
            change(copy)
            if forged:
                rehash(copy)
            said = str(verify(copy, checkpoints=not forged).first.get(kind, "NOTHING")).replace(
                "|", "\\|"
            )
            print(
                f"| {name} | {'regenerated' if forged else 'as recorded'} | {said[:230]} |",
                flush=True,
            )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
