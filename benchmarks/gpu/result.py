"""The benchmark's JSON file, written after every cell, and the tables made from it."""

import shlex
import sys
from pathlib import Path
from typing import Any

from agentrl.evidence import provenance
from agentrl.evidence.errors import StudyError
from agentrl.evidence.files import read_json, write_json, write_text

PARTS = ("sync", "generation", "reference", "forward", "backward", "optimizer", "other")
"""Parts of a GRPO step in order. `sync` hands weights to an engine that holds its own; `reference` is the KL term's pass with the adapter
off; `other` is tokenizing, checking, writing evidence, logging."""
METHODS = {
    "hf-sequential": "HF generate, one by one",
    "hf-batched": "HF generate, batched",
    "hf-continuous": "HF generate_batch",
    "hf-continuous-compiled": "HF generate_batch, compiled",
    "dynamic": "transformers engine, dynamic loop",
    "graphed": "transformers engine, CUDA graphs",
    "compiled": "transformers engine, CUDA graphs and compiled layers",
    "vllm": "vLLM engine",
    "trl": "plain TRL, environment_factory and generate",
}
CHECKPOINTING = "-checkpointing"
"""Ends the name of a training method that recomputes activations."""
_MACHINE = ("gpu", "driver", "cuda")
"""What must be equal for cells to stand in one table. A virtual machine's memory grows with use."""


class MergeError(StudyError, ValueError):
    """Results of another machine or scale cannot stand in one table."""


class Result:
    """One JSON file.

    Args:
        path: where it lies.
        settings: what was measured at which sizes.
        merge: keep the cells that are there already.
    """

    def __init__(self, path: Path, settings: dict[str, Any], merge: bool) -> None:
        self.path = path
        where = provenance.environment()
        self.run = {name: where[name] for name in ("commit", "dirty", "packages", "python")} | {
            "command": command()
        }
        machine = {name: where[name] for name in (*_MACHINE, "host") if name in where}
        self.content: dict[str, Any] = {
            "machine": machine,
            "settings": settings,
            "bandwidth": {},
            "cells": {},
        }
        if merge and path.exists():
            self.content = _same(path, read_json(path), self.content)

    def add(self, name: str, facts: dict[str, Any]) -> None:
        """Keep one cell, and write the file and its tables: a run that is cut off has kept what it measured."""
        self.content["cells"][name] = {**facts, "run": self.run}
        self.write()

    def write(self) -> None:
        """Write JSON and tables."""
        write_json(self.path, self.content)
        write_text(self.path.with_suffix(".md"), tables(self.content))


def _same(path: Path, found: dict[str, Any], wanted: dict[str, Any]) -> dict[str, Any]:
    """The file's content, if it was measured on the same kind of machine at the same sizes. Raises `MergeError`."""
    parts = {name: (found["machine"].get(name), wanted["machine"].get(name)) for name in _MACHINE}
    parts |= {
        name: (found["settings"].get(name), value) for name, value in wanted["settings"].items()
    }
    for name, (old, new) in parts.items():
        if old != new:
            raise MergeError(
                f"{path}: {name} is {old}, of this run {new}; write to another --out, or leave out --merge"
            )
    return found


def tables(content: dict[str, Any]) -> str:
    """Markdown of one result; `remarks` are written into the file by hand."""
    machine, cells = content["machine"], content["cells"]
    speed = content["bandwidth"].get("bytes_per_second")
    where = (
        f"{machine['gpu']}, driver {machine.get('driver', '-')}, CUDA {machine.get('cuda', '-')}"
    )
    if speed:
        where += f", copy bandwidth {speed / 1e12:.2f} TB/s (read and written)"
    head = ["# Speed of decoding and of a GRPO step", "", where, "", *_notes(content), ""]
    return "\n".join(
        [*head, *_speed(cells), *_profiles(cells), *_training(cells), *_remarks(content)]
    )


def _notes(content: dict[str, Any]) -> list[str]:
    settings = content["settings"]
    runs = [cell["run"] for cell in content["cells"].values()]
    commits = sorted(
        {str(run["commit"])[:9] + (" with changes" if run["dirty"] else "") for run in runs}
    )
    commands = sorted({shlex.join(run["command"]) for run in runs})
    shown = ("torch", "transformers", "trl", "peft", "vllm")
    versions = {
        name: sorted({run["packages"][name] for run in runs if name in run["packages"]})
        for name in shown
    }
    named = ", ".join(f"{name} {' and '.join(found)}" for name, found in versions.items() if found)
    return [
        f"{settings['parameters'] / 1e9:.2f} billion random BF16 parameters, {settings['prompt']} prompt tokens, lengths fixed. {named}.",
        f"Commit {', '.join(commits)}. Made by {', '.join(f'`python {command}`' for command in commands)}.",
    ]


def _speed(cells: dict[str, Any]) -> list[str]:
    found = {
        tuple(name.split("/")[1:]): cell
        for name, cell in cells.items()
        if name.startswith("speed/")
    }
    if not found:
        return []
    counts = sorted({int(count) for _, count in found})
    lines = [
        "## Tokens per second by sequences at once",
        "",
        "Whole call, prompts included; in brackets decoding alone as per cent of the bandwidth limit.",
        "",
        _row(["method", "tokens a sequence", *map(str, counts)]),
        _row(["---"] * (len(counts) + 2)),
    ]
    for method, label in METHODS.items():
        row = [found.get((method, str(count))) for count in counts]
        new = {cell["new_tokens"] for cell in row if cell and "new_tokens" in cell}
        if any(row):
            lines.append(_row([label, ", ".join(map(str, sorted(new))) or "-", *map(_rate, row)]))
    limits = {
        int(count): cell["limit"] for (_, count), cell in sorted(found.items()) if "limit" in cell
    }
    lines.append(
        _row(
            [
                "bandwidth limit of decoding",
                "",
                *(f"{limits[count]:,.0f}" if count in limits else "-" for count in counts),
            ]
        )
    )
    return [*lines, ""]


def _rate(cell: dict[str, Any] | None) -> str:
    if cell is None:
        return "-"
    if "tokens_per_second" not in cell:
        return str(cell.get("skipped") or f"failed: {cell['error'].splitlines()[0][:60]}")
    share = f" ({cell['percent_of_limit']:.1f}%)" if "percent_of_limit" in cell else ""
    return f"{cell['tokens_per_second']:,.0f}{share}"


def _profiles(cells: dict[str, Any]) -> list[str]:
    found = {
        name.removeprefix("profile/"): cell
        for name, cell in cells.items()
        if name.startswith("profile/") and "step_ms" in cell
    }
    if not found:
        return []
    lines = [
        "## Where a decoding step goes",
        "",
        "Wall clock without profiler; device time is the sum over kernels; the rest of a step the device waits for Python.",
        "",
        _row(
            [
                "method, sequences",
                "ms a step",
                "ms on the device",
                "waiting",
                "longest kernels, ms a step",
            ]
        ),
        _row(["---"] * 5),
    ]
    for name, cell in found.items():
        kernels = "; ".join(f"`{kernel}` {spent:.2f}" for kernel, spent in cell["kernels"])
        times = [
            f"{cell['step_ms']:.2f}",
            f"{cell['device_ms']:.2f}",
            f"{cell['waiting_percent']:.0f}%",
        ]
        lines.append(_row([name.replace("/", ", "), *times, kernels]))
    return [*lines, ""]


def _training(cells: dict[str, Any]) -> list[str]:
    found = {name.split("/")[1]: cell for name, cell in cells.items() if name.startswith("grpo/")}
    if not found:
        return []
    names = [
        part for part in PARTS if any(part in cell.get("parts", {}) for cell in found.values())
    ]
    lines = [
        "## Seconds of a GRPO step",
        "",
        _row(["method", "steps run", "first step", "step", "16 steps", "peak GB", *names]),
        _row(["---"] * (6 + len(names))),
    ]
    for name in sorted(
        found, key=lambda name: (list(METHODS).index(name.removesuffix(CHECKPOINTING)), name)
    ):
        cell = found[name]
        label = METHODS[name.removesuffix(CHECKPOINTING)] + (
            ", gradient checkpointing" if name.endswith(CHECKPOINTING) else ""
        )
        if "steps" not in cell:
            lines.append(
                _row(
                    [
                        label,
                        cell.get("skipped") or f"failed: {cell['error'].splitlines()[0][:60]}",
                        *["-"] * (4 + len(names)),
                    ]
                )
            )
            continue
        whole = f"{cell['seconds_of_16_steps']:.0f}" + (
            " (extrapolated)" if cell["extrapolated"] else ""
        )
        numbers = [
            str(cell["steps"]),
            f"{cell['first_step_seconds']:.1f}",
            f"{cell['step_seconds']:.2f}",
            whole,
        ]
        peak = f"{cell['peak_memory_gb']:.1f}" if "peak_memory_gb" in cell else "-"
        parts = [
            f"{cell['parts'][part]:.2f}" if part in cell.get("parts", {}) else "-" for part in names
        ]
        lines.append(_row([label, *numbers, peak, *parts]))
    return [*lines, ""]


def _remarks(content: dict[str, Any]) -> list[str]:
    found = content.get("remarks", [])
    return [*(f"- {remark}" for remark in found), ""] if found else []


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def command() -> list[str]:
    """The command line that is running, as `python` got it."""
    return ["-m", "benchmarks.gpu.run", *sys.argv[1:]]
