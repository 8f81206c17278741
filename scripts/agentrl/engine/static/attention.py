# ruff: noqa: ANN001, ANN202, N803 - kernels take untyped pointers, their constants are capitals
"""Attention of one query a row over a cache of rows that differ in length, as a Triton kernel: each row's own keys are read once, no more.

A flash kernel made for training leaves most of a GPU idle when each row has one query, and a masked product reads every row up to the
longest. Here a row's keys are split among programs, each with its own softmax, and their results are put together
(flash decoding: Dao et al. 2023). Query heads that share keys are computed together, so that shared keys are read once.
"""

import torch
import triton
import triton.language as tl

PROGRAMS = 2048
"""Programs wanted in flight: some sixteen for each multiprocessor of a large GPU."""
MAX_SPLITS = 16
"""Parts of one row, at most."""
BLOCK, WARPS, STAGES = 64, 4, 3
"""Keys read together, warps of a program, blocks on their way at once."""
TENSOR_CORE_ROWS = 16
"""The fewest rows of a matrix product in Triton; heads beyond those that share keys are idle."""
LOG2_E = 1.4426950408889634


def attend(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    positions: torch.Tensor,
    scaling: float,
) -> torch.Tensor:
    """Softmax attention of each row's query to its slots up to `positions`, those included.

    Args:
        query: (rows, heads, head_dim), contiguous; head_dim a power of two of 16 or more.
        keys: (rows, key-value heads, slots, head_dim), head_dim contiguous.
        values: the same.
        positions: (rows,) int64.
        scaling: factor of the scores.

    Returns:
        (rows, heads, head_dim), of the query's dtype; sums are float32.
    """
    rows, heads, size = query.shape
    groups = keys.shape[1]
    splits = _splits(rows * groups)
    mixed = torch.empty_like(query)
    shared = heads // groups
    padded = max(TENSOR_CORE_ROWS, triton.next_power_of_2(shared))
    whole = {"dtype": torch.float32, "device": query.device}
    parts = torch.empty((rows, heads, splits, size) if splits > 1 else 1, **whole)
    sums = torch.empty((2, rows, heads, splits) if splits > 1 else (2, 1), **whole)
    _part[rows, groups, splits](
        query, keys, values, positions, mixed, parts, sums[0], sums[1], scaling * LOG2_E, *keys.stride()[:3],
        GROUPS=groups, SHARED=shared, PADDED=padded, SIZE=size, SPLITS=splits, BLOCK=BLOCK, num_warps=WARPS, num_stages=STAGES,
    )  # fmt: skip
    if splits > 1:
        _together[rows, heads](
            parts, sums[0], sums[1], mixed, HEADS=heads, SIZE=size, SPLITS=splits, num_warps=1
        )
    return mixed


def _splits(programs: int) -> int:
    """Parts of a row: a power of two, one where rows and heads fill the GPU by themselves."""
    return min(MAX_SPLITS, triton.next_power_of_2(max(1, PROGRAMS // programs)))


@triton.jit
def _part(
    query, keys, values, positions, mixed, parts, peaks, totals, scaling, row_stride, group_stride, slot_stride,
    GROUPS: tl.constexpr, SHARED: tl.constexpr, PADDED: tl.constexpr, SIZE: tl.constexpr, SPLITS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One part of one row's keys for the heads that share them."""
    row, group, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    length = tl.load(positions + row).to(tl.int32) + 1
    share = tl.cdiv(tl.cdiv(length, SPLITS), BLOCK) * BLOCK
    first = split * share
    last = tl.minimum(first + share, length)
    within, dims, slots = tl.arange(0, PADDED), tl.arange(0, SIZE), tl.arange(0, BLOCK)
    real = within < SHARED
    heads = (row * GROUPS + group) * SHARED + within
    asked = tl.load(query + heads[:, None] * SIZE + dims[None, :], mask=real[:, None], other=0.0)
    start = row.to(tl.int64) * row_stride + group.to(tl.int64) * group_stride
    peak = tl.full([PADDED], float("-inf"), tl.float32)
    total = tl.zeros([PADDED], tl.float32)
    sums = tl.zeros([PADDED, SIZE], tl.float32)
    for at in range(first, last, BLOCK):
        seen = at + slots < last
        where = start + (at + slots)[:, None] * slot_stride + dims[None, :]
        key = tl.load(keys + where, mask=seen[:, None], other=0.0)
        scores = tl.dot(asked, tl.trans(key), input_precision="ieee") * scaling
        scores = tl.where(seen[None, :], scores, float("-inf"))
        higher = tl.maximum(peak, tl.max(scores, 1))
        shrink = tl.exp2(peak - higher)
        weights = tl.exp2(scores - higher[:, None])
        value = tl.load(values + where, mask=seen[:, None], other=0.0)
        total = total * shrink + tl.sum(weights, 1)
        sums = sums * shrink[:, None] + tl.dot(
            weights.to(value.dtype), value, input_precision="ieee"
        )
        peak = higher
    if SPLITS == 1:
        tl.store(
            mixed + heads[:, None] * SIZE + dims[None, :],
            (sums / total[:, None]).to(mixed.dtype.element_ty),
            mask=real[:, None],
        )
    else:
        tl.store(
            parts + (heads * SPLITS + split)[:, None] * SIZE + dims[None, :],
            sums,
            mask=real[:, None],
        )
        tl.store(peaks + heads * SPLITS + split, peak, mask=real)
        tl.store(totals + heads * SPLITS + split, total, mask=real)


@triton.jit
def _together(
    parts, peaks, totals, mixed, HEADS: tl.constexpr, SIZE: tl.constexpr, SPLITS: tl.constexpr
):
    """The parts of one row and head as one; a part without keys weighs nothing."""
    head = tl.program_id(0) * HEADS + tl.program_id(1)
    dims, splits = tl.arange(0, SIZE), tl.arange(0, SPLITS)
    peak = tl.load(peaks + head * SPLITS + splits)
    weight = tl.exp2(peak - tl.max(peak, 0))
    total = tl.sum(tl.load(totals + head * SPLITS + splits) * weight, 0)
    sums = tl.load(parts + (head * SPLITS + splits)[:, None] * SIZE + dims[None, :])
    tl.store(
        mixed + head * SIZE + dims,
        (tl.sum(sums * weight[:, None], 0) / total).to(mixed.dtype.element_ty),
    )
