"""Where a decoding step of an engine goes: how long the device computes, how long it waits, and in which kernels.

Two generations that differ only in their length are profiled; their difference is what the further steps took, prompts and start left out.
"""

from collections import Counter
from typing import Any

import torch
from torch.profiler import ProfilerActivity

from agentrl.rollout.sampler import Engine
from benchmarks.gpu.decoding import ours, prompts, timed
from benchmarks.gpu.scale import Scale

SHORT, LONG = 2, 34
"""Tokens a sequence."""
SHOWN = 8
"""Kernels, the longest first."""
NAME = 60
"""Characters of a kernel's name."""


def profile(engine: Engine, scale: Scale, count: int) -> dict[str, Any]:
    """Milliseconds of one decoding step with `count` sequences: wall clock without the profiler, device time by kernel with it.

    Returns:
        `step_ms`, `device_ms` (sum over kernels), `waiting_percent` (of the wall clock), `kernels` ([name, ms a step], longest first).
    """
    call, texts = ours(engine), prompts(scale, count, f"profile/{count}")
    call(texts, LONG)  # compiles and captures all that follows
    walls = [timed(lambda new=new: call(texts, new), scale)[1] for new in (SHORT, LONG)]  # type: ignore[misc]
    short, long = (_kernels(lambda new=new: call(texts, new)) for new in (SHORT, LONG))  # type: ignore[misc]
    steps = LONG - SHORT
    kernels = {name: (long[name] - short[name]) / steps / 1e3 for name in long}
    wall, device = 1e3 * (walls[1] - walls[0]) / steps, sum(kernels.values())
    longest = sorted(kernels, key=kernels.__getitem__, reverse=True)[:SHOWN]
    return {
        "sequences": count,
        "step_ms": round(wall, 3),
        "device_ms": round(device, 3),
        "waiting_percent": round(100 * max(0.0, 1 - device / wall), 1),
        "kernels": [[name, round(kernels[name], 3)] for name in longest],
    }


def _kernels(call: Any) -> Counter[str]:
    """Microseconds by kernel; on a CPU by operator."""
    activity = ProfilerActivity.CUDA if torch.cuda.is_available() else ProfilerActivity.CPU
    with torch.profiler.profile(activities=[activity]) as seen:
        call()
    found: Counter[str] = Counter()
    for event in seen.key_averages():
        spent = (
            event.self_device_time_total if torch.cuda.is_available() else event.self_cpu_time_total
        )
        found[event.key[:NAME]] += spent
    return found
