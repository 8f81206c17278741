"""Choosing one token per row from logits, with each row's own random stream."""

import torch

from agentrl.rollout.settings import Decoding

TIES = 44
"""Ids tied with the k-th for which `candidates` leaves room."""
CHUNK = 128
"""Ids of which the largest is looked for first; divides the vocabulary of Qwen3."""
MAX_TOP_K = 256
"""Above it a whole row is sorted."""


def truncate(logits: torch.Tensor, decoding: Decoding) -> torch.Tensor:
    """Probabilities after temperature, top-k, top-p and min-p, in that order, as transformers orders its warpers.

    Args:
        logits: (rows, vocabulary), any float dtype.
        decoding: `temperature` must be above 0.

    Returns:
        (rows, vocabulary) float32, each row summing to 1, zeros outside the kept set. Ties at the top-k edge are all kept.
    """
    scaled = logits.float() / decoding.temperature
    if 0 < decoding.top_k < scaled.shape[-1]:
        edge = scaled.topk(decoding.top_k, dim=-1).values[:, -1:]
        scaled = scaled.masked_fill(scaled < edge, -torch.inf)
    probabilities = scaled.softmax(-1)
    if decoding.top_p < 1:
        descending, order = probabilities.sort(dim=-1, descending=True, stable=True)
        outside = (
            descending.cumsum(-1) - descending >= decoding.top_p
        )  # the token that crosses top-p stays
        probabilities = probabilities.masked_fill(outside.scatter(-1, order, outside), 0)
    if decoding.min_p > 0:
        floor = decoding.min_p * probabilities.max(-1, keepdim=True).values
        probabilities = probabilities.masked_fill(probabilities < floor, 0)
    return probabilities / probabilities.sum(-1, keepdim=True)


def candidates(logits: torch.Tensor, decoding: Decoding) -> torch.Tensor | None:
    """The ids among which top-k decides, in id order; None where it does not narrow the vocabulary that far.

    Sorting 151,936 probabilities a row costs a GPU more than the attention of the step. BF16 logits tie often, and every id tied with
    the k-th is kept, hence the spare room; of more than `TIES` tied ids it is `topk` that decides which stay.

    Args:
        logits: (rows, vocabulary).
        decoding: `top_k` 0 keeps everything.

    Returns:
        (rows, top_k + TIES) int64, ascending in each row.
    """
    width = decoding.top_k + TIES
    if not 0 < decoding.top_k <= MAX_TOP_K or width >= logits.shape[-1]:
        return None
    return _largest(logits, width).sort(-1).values


def _largest(logits: torch.Tensor, count: int) -> torch.Tensor:
    """Where the `count` largest of each row are: the `count` chunks with the largest maxima hold them all, and little else is looked at."""
    rows, vocabulary = logits.shape
    if vocabulary % CHUNK or vocabulary // CHUNK <= count:
        return logits.topk(count, dim=-1).indices
    chunks = logits.view(rows, -1, CHUNK)
    best = chunks.amax(-1).topk(count, dim=-1).indices
    inside = chunks.gather(1, best.unsqueeze(-1).expand(-1, -1, CHUNK)).flatten(1)
    at = inside.topk(count, dim=-1).indices
    return best.gather(1, at // CHUNK) * CHUNK + at % CHUNK


def choose_tokens(
    logits: torch.Tensor, decoding: Decoding, uniforms: torch.Tensor, narrow: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sample one id per row by inverse transform, and its log-probability before truncation.

    Inverse transform from a row's own uniform number, in id order, makes a row's choice a function of its logits and its key alone;
    a shared generator would make it depend on the batch.

    Args:
        logits: (rows, vocabulary).
        decoding: temperature 0 is greedy; its log-probabilities are then those of temperature 1.
        uniforms: (rows,) float64 in [0, 1).
        narrow: look at `candidates` only. The same ids, but for rounding in the last place of a cumulative probability.

    Returns:
        ids (rows,) int64 and log-probabilities (rows,) float32 in nats.
    """
    if decoding.temperature == 0:
        ids = logits.argmax(-1)
    else:
        kept = candidates(logits, decoding) if narrow else None
        pool = logits if kept is None else logits.gather(-1, kept)
        cumulative = truncate(pool, decoding).double().cumsum(-1)
        target = uniforms.to(cumulative.device).unsqueeze(-1) * cumulative[:, -1:]
        ids = torch.searchsorted(cumulative, target, right=True).squeeze(-1)
        ids = ids.clamp(max=pool.shape[-1] - 1)
        if kept is not None:
            ids = kept.gather(-1, ids.unsqueeze(-1)).squeeze(-1)
    scaled = logits.float() / (decoding.temperature or 1.0)
    logprobs = scaled.gather(-1, ids.unsqueeze(-1)).squeeze(-1) - scaled.logsumexp(-1)
    return ids, logprobs
