"""Time `snakemake -n` on studies of many arms and seeds, before they run and when they are finished.

The studies are faked but really executed: a copy of the rules whose commands only create the outputs, so that Snakemake's own metadata
holds every input, parameter and digest of a real study. Each plan is a fresh process; sizes take turns, so that a busy machine slows all
of them alike, and CPU seconds stand beside wall seconds.
"""

import argparse
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from agentrl.evidence import provenance
from agentrl.evidence.files import write_json, write_text
from agentrl.evidence.stage import run_command
from benchmarks import ROOT

COPIED = (
    "Snakefile",
    "rules",
    "scripts",
    "config.yaml",
    "profiles",
    "envs",
    "tests/micro.yaml",
    "tests/data",
)
_SHELL = re.compile(r"^( +)shell:\n(?:\1 +\S.*\n)+", re.MULTILINE)
_HOOK = re.compile(r"^onsuccess:\n(?: +\S.*\n)+", re.MULTILINE)
FAKE = "for file in {output}; do echo $file > $file; done"
SIZES = ("5x5", "10x10", "20x10")
FRESH_TARGET, FINISHED_TARGET = 10.0, 20.0
"""Seconds within which a 20x10 study must be planned, and within which a finished one must say that nothing is to be done."""


def main() -> None:
    """Build, plan, execute and plan again; print the table and keep the numbers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", nargs="+", default=list(SIZES), help="arms x seeds, e.g. 20x10")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, help="folder for planning.json and planning.md")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        studies = {
            size: study(Path(scratch) / size, *map(int, size.split("x"))) for size in args.sizes
        }
        rows = [{"size": size} for size in args.sizes]
        measure(rows, studies, args.repeats, "fresh")
        for row in rows:
            row["execute_seconds"] = execute(studies[row["size"]])
            print(json.dumps(row), flush=True)
        measure(rows, studies, args.repeats, "finished")
    about = {
        name: provenance.environment()[name]
        for name in ("commit", "dirty", "python", "host", "packages")
    }
    result = {
        "rows": rows,
        "repeats": args.repeats,
        "targets": {"fresh": FRESH_TARGET, "finished": FINISHED_TARGET},
        **about,
    }
    text = table(result)
    print(text)
    if args.out:
        write_json(args.out / "planning.json", result)
        write_text(args.out / "planning.md", text)


def fake_project(target: Path) -> Path:
    """A copy of the project whose rules only create their outputs; parameters, inputs and digests stay those of the real rules."""
    for name in COPIED:
        source, destination = ROOT / name, target / name
        destination.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, destination, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copyfile(source, destination)
    for path in (target / "rules").glob("*.smk"):
        path.write_text(
            _SHELL.sub(rf'\1shell:\n\1    "{FAKE}"\n', path.read_text(encoding="utf-8")),
            encoding="utf-8",
        )
    snakefile = target / "Snakefile"
    snakefile.write_text(_HOOK.sub("", snakefile.read_text(encoding="utf-8")), encoding="utf-8")
    return target


def study(target: Path, arms: int, seeds: int) -> Path:
    """A faked project with that many arms (a placebo among them) and seeds; agent on both splits and retention are evaluated."""
    fake_project(target)
    named = {"pilot": {"reward": "shaped"}, "placebo": {"reward": "random"}}
    named |= {
        f"arm-{number}": {"reward": "shaped", "training": {"learning_rate": number * 1e-6}}
        for number in range(1, arms - 1)
    }
    write_json(
        target / "size.yaml",
        {"study": "size", "arms": named, "training": {"seeds": list(range(1, seeds + 1))}},
    )
    return target


def snakemake(
    folder: Path, *arguments: str, configs: tuple[str, ...] = ("config.yaml", "size.yaml")
) -> subprocess.CompletedProcess[str]:
    """Run the workflow of a faked project in a fresh process. Exits with its output where it fails."""
    command = [
        sys.executable,
        "-m",
        "snakemake",
        "--cores",
        "2",
        "--configfile",
        *configs,
        *arguments,
    ]
    done = subprocess.run(
        command,
        cwd=folder,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    if done.returncode:
        sys.exit(
            f"error: {' '.join(command)} in {folder} ended with {done.returncode}:\n{done.stdout[-3000:]}"
        )
    return done


def execute(folder: Path) -> float:
    """Run every faked job; wall seconds."""
    began = time.monotonic()
    snakemake(folder, "--quiet", "all", "--resources", "gpu=8", "--scheduler", "greedy")
    return round(time.monotonic() - began, 1)


def measure(rows: list[dict[str, Any]], studies: dict[str, Path], repeats: int, state: str) -> None:
    """Plan every study `repeats` times in turns; medians of wall and CPU seconds, the output's size and the number of jobs."""
    samples: dict[str, list[tuple[float, float, float]]] = {row["size"]: [] for row in rows}
    said: dict[str, str] = {}
    for _ in range(repeats):
        for size, taken in samples.items():
            seconds, cpu, said[size] = plan(studies[size])
            taken.append((seconds, cpu, os.getloadavg()[0]))
    for row in rows:
        taken, text = samples[row["size"]], said[row["size"]]
        if (state == "finished") != ("Nothing to be done" in text):
            sys.exit(f"error: a {state} study of {row['size']} planned otherwise:\n{text[-3000:]}")
        names = (f"{state}_seconds", f"{state}_cpu_seconds", f"{state}_load")
        row |= {
            name: round(median(values), 1)
            for name, values in zip(names, zip(*taken, strict=True), strict=True)
        }
        row[f"{state}_worst_seconds"] = round(max(seconds for seconds, *_ in taken), 1)
        if state == "fresh":
            total = re.search(r"^total +(\d+)$", text, re.MULTILINE)
            row |= {"jobs": int(total[1]) if total else 0, "output_kb": len(text) >> 10}


def plan(folder: Path) -> tuple[float, float, str]:
    """Wall seconds, CPU seconds and output of one dry run."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    text = snakemake(folder, "-n").stdout
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.monotonic() - began, cpu, text


def table(result: dict[str, Any]) -> str:
    """The numbers as Markdown."""
    host = result["host"]
    versions = f"Python {result['python']}, Snakemake {result['packages']['snakemake']}"
    commit = f"commit {str(result['commit'])[:12]}{' and changes' if result['dirty'] else ''}"
    lines = [
        f"Median of {result['repeats']} plans, seconds; {host['cpus']} cores ({host['processor']}), {versions}, {commit}.",
        "",
        "Load is the machine's average number of runnable processes: with nothing else to do, wall seconds come close to CPU seconds.",
        "",
        "| arms x seeds | jobs | `-n`, fresh: wall | CPU | load | output, KB | `-n`, finished: wall | CPU | load |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in result["rows"]:
        fresh, finished = (
            " | ".join(str(row[f"{state}_{name}"]) for name in ("seconds", "cpu_seconds", "load"))
            for state in ("fresh", "finished")
        )
        lines.append(
            f"| {row['size']} | {row['jobs']} | {fresh} | {row['output_kb']} | {finished} |"
        )
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    run_command(main)
