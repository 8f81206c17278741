"""Random streams named by what they are for: same key, same numbers, whatever runs beside it."""

import hashlib

import numpy as np


def stream(*key: str | int) -> np.random.Generator:
    """Independent generator for one key, e.g. ("evaluation", seed, task, trial, turn).

    Philox, keyed by the first 128 bits of the key's sha256 (Salmon et al. 2011): streams do not overlap in practice.
    """
    digest = hashlib.sha256(
        "\x1f".join(f"{type(part).__name__}:{part}" for part in key).encode()
    ).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest[:16], "little")))


def uniform(*key: str | int) -> float:
    """One number in [0, 1) for a key."""
    return float(stream(*key).random())


def integer(*key: str | int) -> int:
    """One seed in [0, 2**31) for a key, for libraries that take an integer."""
    return int(stream(*key).integers(2**31))
