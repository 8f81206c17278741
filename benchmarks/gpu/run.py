"""Measure on this machine's GPU how fast each engine decodes and how long a GRPO step takes, against the bandwidth limit.

One run is meant to take about ten minutes of an H200 and writes its JSON file and tables after every cell. `--only` names cells by pattern
(`speed/compiled/*`, `grpo/trl`), `--merge` adds to an existing file, `--tiny` tries everything in seconds on a CPU.
"""

import argparse
import gc
import os
import tempfile
import time
from contextlib import suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

os.environ.setdefault(
    "TRL_EXPERIMENTAL_SILENCE", "1"
)  # rollout_func is experimental in TRL 1.16; the version is pinned

import torch

from agentrl.evidence.stage import run_command
from agentrl.policy.loading import load_model
from agentrl.rollout.sampler import Engine
from agentrl.study.config import validate_study
from agentrl.study.strictyaml import read_yaml
from benchmarks import ROOT
from benchmarks.gpu import decoding, kernels, limit, training
from benchmarks.gpu.result import Result
from benchmarks.gpu.scale import FULL, SMALL, Scale, make_checkpoint


def main() -> None:
    """Make the policy, measure the bandwidth, then one cell after another."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/gpu/speed.json")
    parser.add_argument(
        "--only", nargs="+", default=["*"], metavar="PATTERN", help="cells to measure"
    )
    parser.add_argument("--merge", action="store_true", help="keep the other cells of --out")
    parser.add_argument(
        "--tiny",
        action="store_true",
        help="a tiny policy on the CPU: tests the benchmark, measures nothing",
    )
    parser.add_argument(
        "--tokenizer",
        type=Path,
        default=ROOT / "tests/data/start",
        help="any tokenizer of the protocol",
    )
    parser.add_argument(
        "--commit", help="what to record where this copy of the code has no git history"
    )
    parser.add_argument(
        "--seconds", type=float, default=540.0, help="start no further cell after so many seconds"
    )
    args = parser.parse_args()
    scale = SMALL if args.tiny else FULL
    cells = [name for name in scale.cells() if any(fnmatch(name, pattern) for pattern in args.only)]
    if not cells:
        parser.error(f"no cell matches {args.only}; there are {', '.join(scale.cells())}")
    if scale.device == "cuda" and not torch.cuda.is_available():
        parser.error("no GPU here; --tiny tries everything on a CPU")
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(scale, args.tokenizer, Path(folder), args.out, args.merge)
        bench.result.run["commit"] = bench.result.run["commit"] or args.commit
        for name in cells:
            late = time.monotonic() - began > args.seconds
            bench.result.add(name, {"skipped": "not run: time limit"} if late else bench.cell(name))
            print(
                f"{time.monotonic() - began:5.0f} s  {name}  {summary(bench.result.content['cells'][name])}",
                flush=True,
            )


class Bench:
    """The policy, what is loaded of it, and the result so far."""

    def __init__(self, scale: Scale, tokenizer: Path, folder: Path, out: Path, merge: bool) -> None:
        self.scale, self.folder = scale, folder
        self.study = validate_study(read_yaml(ROOT / "config.yaml"))
        self.parameters = make_checkpoint(scale, tokenizer, folder)
        sizes = {
            name: getattr(scale, name) for name in ("prompt", "new", "budget", "steps", "shape")
        }
        settings = {
            "parameters": self.parameters,
            **sizes,
            "decoding": self.study.decoding.model_dump(),
        }
        self.result = Result(out, settings, merge)
        self.speed = limit.bandwidth(scale)
        self.result.content["bandwidth"] = {
            "bytes_per_second": round(self.speed),
            "copied_bytes": scale.buffer,
        }
        self.loaded: tuple[str, Any] | None = None
        self.opened = 0.0

    def cell(self, name: str) -> dict[str, Any]:
        """Facts of one cell; a method that fails or is not installed says so, and the next one has its turn."""
        try:
            kind, method, *count = name.split("/")
            if kind == "grpo":
                self.free()
                return training.measure(self.folder, method, self.scale, self.study)
            if kind == "profile":
                return kernels.profile(
                    self.engine(method, int(count[0])), self.scale, int(count[0])
                )
            return self.decode(method, int(count[0]))
        except decoding.NotInstalledError as error:
            return {"skipped": str(error)}
        except (RuntimeError, ValueError, TypeError, AttributeError, ImportError, OSError) as error:
            return {"error": f"{type(error).__name__}: {error}"}
        finally:
            if self.scale.device == "cuda":
                gc.collect()
                with suppress(
                    RuntimeError
                ):  # after a CUDA fault nothing can be given back, and the fault is what is to be told
                    torch.cuda.empty_cache()

    def decode(self, method: str, count: int) -> dict[str, Any]:
        """One cell of decoding, with its limit."""
        if method.startswith("hf-"):
            call = decoding.hf_method(
                self.load("transformers", self.weights), self.study.decoding, method
            )
        else:
            call = decoding.ours(self.engine(method, count))
        facts = decoding.measure(call, method, self.scale, count)
        together = 1 if method == "hf-sequential" else count
        fastest = limit.limit(
            self.scale, self.parameters, together, self.scale.new[method], self.speed
        )
        facts |= {"limit": round(fastest, 1), "loading_seconds": round(self.opened, 2)}
        if "decode_tokens_per_second" in facts:
            facts["percent_of_limit"] = round(100 * facts["decode_tokens_per_second"] / fastest, 2)
        return facts

    def engine(self, method: str, count: int) -> Engine:
        """vLLM, or our transformers engine with a loop of its own."""
        if method == "vllm":
            return self.load(
                "vllm", lambda: decoding.vllm_engine(self.folder, self.scale, self.study.decoding)
            )
        return decoding.transformers_engine(
            self.load("transformers", self.weights), self.study.decoding, method, count
        )

    def weights(self) -> Any:
        """The policy as transformers loads it."""
        return load_model(self.folder, self.scale.model)

    def load(self, kind: str, opened: Any) -> Any:
        """Weights or engine, kept from cell to cell."""
        if self.loaded is None or self.loaded[0] != kind:
            self.free()
            began = time.monotonic()
            self.loaded = (kind, opened())
            self.opened = time.monotonic() - began
        return self.loaded[1]

    def free(self) -> None:
        """Give back what is loaded."""
        self.loaded = None
        gc.collect()
        if self.scale.device == "cuda":
            torch.cuda.empty_cache()


def summary(facts: dict[str, Any]) -> str:
    """One cell in one line."""
    if "tokens_per_second" in facts:
        share = f"{facts.get('percent_of_limit', '?')}% of the limit"
        return f"{facts['tokens_per_second']:,.0f} tokens/s, {share}, start-up {facts['loading_seconds']} + {facts['startup_seconds']} s"
    if "step_ms" in facts:
        return f"{facts['step_ms']} ms a step, the device waits {facts['waiting_percent']}%, longest kernels {facts['kernels']}"
    if "step_seconds" in facts:
        return f"{facts['step_seconds']} s a step, {facts.get('parts', {})}"
    return str(facts.get("skipped") or facts["error"])


if __name__ == "__main__":
    run_command(main)
