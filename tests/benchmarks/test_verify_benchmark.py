"""The synthetic study that verification is timed on verifies, and has the pilot's size."""

import json
import subprocess
import sys
from pathlib import Path

from transformers import PreTrainedTokenizerFast

ROOT = Path(__file__).resolve().parents[2]


def test_the_synthetic_study_verifies_at_the_pilot_s_size(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    given = ["--tokenizer", str(tmp_path / "tokenizer"), "--scales", "1", "--out", str(tmp_path)]
    command = [sys.executable, "-m", "benchmarks.verify.run", *given]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-3000:]
    (row,) = json.loads((tmp_path / "verify.json").read_text(encoding="utf-8"))["rows"]
    assert (row["scale"], row["episodes"], row["answers"]) == (1, 64 + 2 * 32, 2 * 64)
    assert row["tool calls"] > 100
