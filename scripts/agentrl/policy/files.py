"""Which files of a checkpoint folder count, and their digests for a plan; light, because every `snakemake -n` asks."""

from pathlib import Path

from agentrl.evidence.files import read_json
from agentrl.evidence.hashing import hash_files

CHECKPOINT = "model"
"""Folder of the checkpoint beside a policy's manifest."""
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "special_tokens_map.json",
    "vocab.json",
    "merges.txt",
)
INDEX = "model.safetensors.index.json"
_CONFIG = ("config.json", "generation_config.json")


def weight_files(folder: Path) -> list[str]:
    """Names of the weights in safetensors format: those the index lists, else the single file; empty if there is neither."""
    if (folder / INDEX).is_file():
        return sorted(set(read_json(folder / INDEX)["weight_map"].values()))
    return [name for name in ("model.safetensors",) if (folder / name).is_file()]


def files(folder: Path) -> list[str]:
    """Names of the files that would be loaded; whatever else lies there, such as an optimizer's state, does not count."""
    wanted = {*weight_files(folder), *_CONFIG, INDEX, *TOKENIZER_FILES}
    return sorted(name for name in wanted if (folder / name).is_file())


def start_params(start: str, recorded: Path) -> list[str]:
    """`file sha256` of a local start checkpoint: what the rule that records it compares, because its path says nothing of its content.

    A folder that is gone (a study copied without its weights) counts as unchanged: then the digests recorded in `recorded`, the start's
    folder in the study, stand for it. A hub id has none: its revision is pinned by the configuration.

    Args:
        start: `model.start`.
        recorded: `results/{study}/start`.
    """
    folder, manifest = Path(start), recorded / "manifest.json"
    if folder.is_dir():
        found = hash_files(folder, files(folder))
    elif manifest.is_file() and (recorded / CHECKPOINT).resolve() == folder.resolve():
        outputs = read_json(manifest)["outputs"].items()
        found = {
            name.removeprefix(f"{CHECKPOINT}/"): digest
            for name, digest in outputs
            if name.startswith(f"{CHECKPOINT}/")
        }
    else:
        return []
    return [f"{name} {digest[:16]}" for name, digest in sorted(found.items())]
