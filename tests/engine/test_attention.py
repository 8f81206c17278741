"""The Triton kernel of the static loop gives what plain PyTorch gives: on a GPU as it is, without one in Triton's interpreter."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
TEST_ONLY = Path(sys.prefix) / "test-only"
"""Where `make test` installs what only tests need."""

COMPARE = """
import json, sys
import torch
from agentrl.engine.static import attention
from agentrl.engine.static.forward import attend

torch.manual_seed(0)
device, dtype = sys.argv[1], getattr(torch, sys.argv[2])
found = []
for rows, heads, groups, size, length in [(3, 4, 2, 32, 300), (2, 16, 8, 128, 200), (5, 6, 2, 64, 130), (3, 4, 4, 16, 70)]:
    query = torch.randn(rows, heads, size, device=device).to(dtype)
    keys, values = (torch.randn(rows + 2, groups, length, size, device=device).to(dtype) for _ in range(2))
    positions = torch.randint(0, length, (rows,), device=device)
    positions[0], positions[-1] = 0, length - 1
    for row, position in enumerate(positions.tolist()):  # nobody may look behind a row's position
        keys[row, :, position + 1 :] = values[row, :, position + 1 :] = float("nan")
    for wanted, scaling in ((1, 0.3), (64, 0.3), (2048, 0.3), (2048, 40.0)):  # the last: scores whose powers of two overflow
        attention.PROGRAMS = wanted
        mixed = attention.attend(query, keys[:rows], values[:rows], positions, scaling)
        clean = [torch.nan_to_num(part[:rows]) for part in (keys, values)]
        gap = (mixed - attend(query, *clean, positions, scaling)).abs().max().item()
        found.append([attention._splits(rows * groups), gap * 0.3 / scaling])
print(json.dumps(found))
"""


def test_kernel_equals_plain_attention() -> None:
    """Rows of one key and of all, heads that share keys, parts without keys, cached garbage behind a row's end."""
    cuda = torch.cuda.is_available()
    interpreter = {} if cuda else {"TRITON_INTERPRET": "1"}
    if not cuda and not (TEST_ONLY / "triton").is_dir():
        pytest.skip(
            f"{TEST_ONLY / 'triton'} is missing; pip install --no-deps --target {TEST_ONLY} -r envs/test-only.txt"
        )
    path = os.pathsep.join([str(ROOT / "scripts"), *(sys.path if cuda else [str(TEST_ONLY)])])
    for dtype, tolerance in (("float32", 1e-5), ("bfloat16", 0.02))[
        : 1 + cuda
    ]:  # the interpreter has no bfloat16
        command = [sys.executable, "-c", COMPARE, "cuda" if cuda else "cpu", dtype]
        run = subprocess.run(
            command,
            env=os.environ | interpreter | {"PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=False,
        )
        assert run.returncode == 0, run.stderr
        found = json.loads(run.stdout)
        assert {splits for splits, _ in found} == {1, 4, 8, 16}
        assert all(gap < tolerance for _, gap in found), found
