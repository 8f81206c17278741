"""Measurements beside what they found: `python -m benchmarks.gpu.run` and so on, from the repository's root.

Nothing of a study imports them. The library they measure lies in scripts/, which is no package of its own.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
"""The repository."""
sys.path.insert(0, str(ROOT / "scripts"))
