"""Loading a policy's weights: from a local folder, in safetensors, without code of the checkpoint's own."""

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from agentrl.policy.checkpoint import PolicyError
from agentrl.policy.settings import Model


def load_model(folder: str | Path, section: Model) -> PreTrainedModel:
    """Weights of a checkpoint folder in the configured dtype, on the configured device, in eval mode."""
    if section.device == "cuda" and not torch.cuda.is_available():
        raise PolicyError(
            "model.device: 'cuda' is configured but this worker sees no GPU; run it on a GPU node, or set model.device: cpu"
        )
    if section.threads is not None:
        torch.set_num_threads(section.threads)
    model = AutoModelForCausalLM.from_pretrained(
        str(folder),
        dtype=getattr(torch, section.dtype),
        use_safetensors=True,
        local_files_only=True,
        trust_remote_code=False,
    )
    return model.to(section.device).eval()
