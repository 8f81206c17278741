"""What is measured: the policy's shape, sequences at once, tokens, training steps; at full scale, and tiny to test the benchmark itself."""

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from agentrl.policy.checkpoint import TOKENIZER_FILES
from agentrl.policy.settings import Model

QWEN3_1_7B = {
    "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28, "num_attention_heads": 16,
    "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 40960, "tie_word_embeddings": True,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0},
}  # fmt: skip
"""`config.json` of Qwen/Qwen3-1.7B."""
TINY = QWEN3_1_7B | {"vocab_size": 2000, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
                     "num_key_value_heads": 2, "head_dim": 32}  # fmt: skip


@dataclass(frozen=True)
class Scale:
    """Sizes of one benchmark."""

    shape: dict[str, Any] = field(hash=False)
    device: str
    prompt: int
    """Prompt tokens of a sequence."""
    counts: dict[str, tuple[int, ...]] = field(hash=False)
    """Method -> sequences at once: where it makes sense to measure it."""
    new: dict[str, int] = field(hash=False)
    """Method -> sampled tokens a sequence: slow methods get fewer, so that the whole fits into ten minutes of a GPU."""
    budget: int
    """Tokens of a training episode; a random policy always uses them up."""
    profiled: dict[str, tuple[int, ...]] = field(hash=False)
    """Method -> sequences at once of the steps that are profiled."""
    steps: dict[str, int] = field(hash=False)
    """Training method -> optimizer steps."""
    buffer: int
    """Bytes copied to measure the bandwidth."""

    @property
    def model(self) -> Model:
        """How every method loads the policy."""
        return Model(
            start=None, dtype="bfloat16", device="cuda" if self.device == "cuda" else "cpu"
        )

    def cells(self) -> list[str]:
        """Names of all cells in the order in which they run.

        vLLM comes last, because it keeps what memory it takes, and beside a trainer first, because there it takes little.
        """
        speed = [
            f"speed/{method}/{count}" for method, counts in self.counts.items() for count in counts
        ]
        speed += [
            f"profile/{method}/{count}"
            for method, counts in self.profiled.items()
            for count in counts
        ]
        grpo = [f"grpo/{method}" for method in self.steps]
        return sorted(
            speed + grpo, key=lambda name: ("vllm" in name, "vllm" in name and name in speed)
        )


ALL = (1, 4, 32, 128, 512)
FULL = Scale(
    shape=QWEN3_1_7B,
    device="cuda",
    prompt=512,
    counts={
        "hf-sequential": (1, 4),
        "hf-batched": (4, 32, 128, 512),
        "hf-continuous": (32, 128, 512),
        "hf-continuous-compiled": (32, 128, 512),
        "dynamic": (4, 32),
        "graphed": (4, 32),
        "compiled": ALL,
        "vllm": ALL,
    },
    new={
        "hf-sequential": 32,
        "hf-batched": 64,
        "hf-continuous": 256,
        "hf-continuous-compiled": 256,
        "dynamic": 64,
        "graphed": 256,
        "compiled": 256,
        "vllm": 256,
    },
    budget=768,
    profiled={"compiled": (4, 32, 512), "vllm": (4, 32, 512)},
    steps={"trl": 1, "compiled": 16, "compiled-checkpointing": 2, "vllm": 16},
    buffer=8 << 30,
)
SMALL = Scale(
    shape=TINY,
    device="cpu",
    prompt=12,
    counts={
        "hf-sequential": (1, 2),
        "hf-batched": (2,),
        "dynamic": (1, 4),
        "graphed": (1, 4),
        "vllm": (1,),
    },
    new={"hf-sequential": 3, "hf-batched": 3, "dynamic": 4, "graphed": 6, "vllm": 6},
    budget=24,
    profiled={"graphed": (4,)},
    steps={"trl": 1, "graphed": 2, "graphed-checkpointing": 1, "vllm": 1},
    buffer=16 << 20,
)


def make_checkpoint(scale: Scale, tokenizer: Path, folder: Path) -> int:
    """Write random BF16 weights of the shape, with a tokenizer beside them; returns the number of parameters.

    The tokenizer only turns prompts into ids and garbage into text: any with the protocol's tokens will do.
    """
    torch.manual_seed(0)
    with torch.device(scale.device):
        model = Qwen3ForCausalLM._from_config(Qwen3Config(**scale.shape), dtype=torch.bfloat16)  # noqa: SLF001 - builds in BF16 at once
    model.save_pretrained(folder)
    for name in TOKENIZER_FILES:
        if (tokenizer / name).is_file():
            shutil.copyfile(tokenizer / name, folder / name)
    return sum(parameter.numel() for parameter in model.parameters())
