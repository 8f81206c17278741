"""The bandwidth limit of decoding: no step can be faster than reading every weight and every cached key and value once."""

import time

import torch

from benchmarks.gpu.scale import Scale

REPEATS = 10


def bandwidth(scale: Scale) -> float:
    """Bytes a second, read and written, of a copy within the device's memory: the best of ten."""
    source = torch.empty(scale.buffer, dtype=torch.uint8, device=scale.device)
    target = torch.empty_like(source)
    best = float("inf")
    for _ in range(REPEATS):
        synchronize(scale)
        began = time.perf_counter()
        target.copy_(source)
        synchronize(scale)
        best = min(best, time.perf_counter() - began)
    return 2 * scale.buffer / best


def synchronize(scale: Scale) -> None:
    """Wait for the device."""
    if scale.device == "cuda":
        torch.cuda.synchronize()


def step_bytes(scale: Scale, parameters: int, count: int, context: float) -> float:
    """Bytes that one decode step must read: BF16 weights once, tied embeddings as the head, and `count` caches of `context` tokens."""
    shape = scale.shape
    token = 2 * shape["num_hidden_layers"] * shape["num_key_value_heads"] * shape["head_dim"] * 2
    return 2 * parameters + count * context * token


def limit(scale: Scale, parameters: int, count: int, new: int, speed: float) -> float:
    """Tokens a second at which `count` sequences could be decoded at most, their mean context being the prompt and half of what is sampled.

    Args:
        scale: shape and prompt.
        parameters: of the policy.
        count: sequences at once.
        new: tokens sampled per sequence.
        speed: bytes a second.
    """
    return count * speed / step_bytes(scale, parameters, count, scale.prompt + new / 2)
