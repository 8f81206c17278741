"""A decoder layer's projections as products, one for those that read the same input, LoRA's included.

`A` is appended to the weight, `B` follows as one block-diagonal product, both in the policy's dtype as under the trainer's autocast. PEFT's
own layers cast, multiply, scale and add one by one for each adapter.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from peft.tuners.lora import Linear as LoraLinear
from torch.nn.functional import linear
from transformers import PreTrainedModel, Qwen3ForCausalLM


class Product(NamedTuple):
    """Linear layers that read the same input, as one."""

    weight: torch.Tensor
    """(outputs + rank, inputs): the layers' weights one below the other, then each adapter's `A`."""
    up: torch.Tensor | None
    """(rank, outputs): each adapter's `B`, scaled and transposed, zeros elsewhere; None without adapters."""


class Weights(NamedTuple):
    """The products of one layer."""

    qkv: Product
    out: Product
    gate_up: Product
    down: Product


def base_model(model: torch.nn.Module) -> PreTrainedModel:
    """The transformers model beneath an adapter, LoRA layers in place."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model  # type: ignore[return-value, operator]


def supported(model: torch.nn.Module) -> bool:
    """Whether the model can be run so: Qwen3 with full attention in every layer and plain projections, under plain LoRA or none."""
    base = base_model(model)
    if not isinstance(base, Qwen3ForCausalLM) or set(base.config.layer_types) != {"full_attention"}:
        return False
    return all(
        _plain(part) for layer in base.model.layers for parts in _parts(layer) for part in parts
    )


def _parts(layer: torch.nn.Module) -> tuple[list[Any], ...]:
    """The layers of each product, in the order of `Weights`."""
    attention, mlp = layer.self_attn, layer.mlp
    return (
        [attention.q_proj, attention.k_proj, attention.v_proj],
        [attention.o_proj],
        [mlp.gate_proj, mlp.up_proj],
        [mlp.down_proj],
    )  # type: ignore[union-attr]


def _plain(part: Any) -> bool:
    if isinstance(part, LoraLinear):
        odd = [part.lora_variant, *(up.bias is not None for up in part.lora_B.values())]
        odd += [type(dropout) is not torch.nn.Identity for dropout in part.lora_dropout.values()]
        return not any(odd) and _plain(part.base_layer)
    return type(part) is torch.nn.Linear and part.bias is None


def weights(layer: torch.nn.Module) -> Weights:
    """The products of a decoder layer: copies, but for a lone projection without an adapter. Adapters are filled in by `adapt`."""
    return Weights(*map(_product, _parts(layer)))


def _product(parts: Sequence[Any]) -> Product:
    bases = [getattr(part, "base_layer", part).weight.detach() for part in parts]
    adapters = [adapter for part in parts for adapter in _adapters(part)]
    if not adapters:
        return Product(bases[0] if len(bases) == 1 else torch.cat(bases), None)
    rank, outputs = sum(len(adapter.down) for adapter in adapters), sum(map(len, bases))
    return Product(
        torch.cat([*bases, bases[0].new_zeros(rank, bases[0].shape[1])]),
        bases[0].new_zeros(rank, outputs),
    )


def adapt(layer: torch.nn.Module, products: Weights) -> None:
    """Write a layer's adapters into its products as they are now."""
    for parts, product in zip(_parts(layer), products, strict=True):
        if product.up is None:
            continue
        outputs, start, row = product.up.shape[1], 0, 0
        for part in parts:
            end = start + part.out_features
            for adapter in _adapters(part):
                rank = len(adapter.down)
                product.weight[outputs + row : outputs + row + rank] = adapter.down
                product.up[row : row + rank, start:end] = adapter.up.T * adapter.scaling
                row += rank
            start = end


def in_effect(layer: torch.nn.Module) -> list[int]:
    """How many adapters each projection of a decoder layer has in effect."""
    return [len(_adapters(part)) for parts in _parts(layer) for part in parts]


class _Adapter(NamedTuple):
    """One LoRA of one projection."""

    down: torch.Tensor
    """`A` (rank, inputs)"""
    up: torch.Tensor
    """`B` (outputs, rank)"""
    scaling: float


def _adapters(part: Any) -> list[_Adapter]:
    """The adapters in effect, as PEFT's own forward applies them."""
    if not isinstance(part, LoraLinear) or part.disable_adapters or part.merged:
        return []
    names = [name for name in part.active_adapters if name in part.lora_A]
    return [
        _Adapter(part.lora_A[name].weight, part.lora_B[name].weight, part.scaling[name])
        for name in names
    ]


def project(product: Product, given: torch.Tensor) -> torch.Tensor:
    """(tokens, inputs) -> (tokens, outputs)."""
    found = linear(given, product.weight)
    if product.up is None:
        return found
    outputs = product.up.shape[1]
    return add(found[:, :outputs], found[:, outputs:] @ product.up)


def add(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """The sum, rounded once, which is what `+` gives, but fused with what follows.

    Of a `+` behind a product the compiler makes a product that accumulates onto a copy: a kernel more in each of 56 places.
    """
    return (one.float() + other.float()).to(one.dtype)
