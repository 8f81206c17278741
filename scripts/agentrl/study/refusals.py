"""What a study cannot be, seen before its first job: a start that is not there, an episode beyond its context, a plan that looks away."""

from collections.abc import Iterable
from pathlib import Path

from agentrl.evidence.files import read_json
from agentrl.evidence.section import ConfigError
from agentrl.study.config import Study

TRIGGERS = frozenset({"mtime", "params", "input", "software-env", "code"})
"""What Snakemake looks at by default. A section or a module that changed is seen by `params` alone."""


def check_start(study: Study, recorded: Path) -> None:
    """Refuse a start checkpoint that is not there, or whose context an episode would leave. Raises `ConfigError`.

    A study copied without its weights still plans: its start was recorded, and what was made of it stands. A hub id is fetched by the job.

    Args:
        study: the validated configuration.
        recorded: `results/{study}/start`.
    """
    start = study.model.start
    if start is None:
        return
    folder = Path(start)
    if not folder.is_dir():
        is_hub_id = start.count("/") == 1 and not start.startswith((".", "/"))
        if is_hub_id or (recorded / "manifest.json").is_file():
            return
        raise ConfigError(
            f"model.start: no folder {start!r}; give the folder of a checkpoint, or a hub id as owner/name"
        )
    if not (folder / "config.json").is_file():
        raise ConfigError(
            f"model.start: {folder / 'config.json'} is missing; give the folder that save_pretrained wrote"
        )
    context = read_json(folder / "config.json").get("max_position_embeddings")
    for key, tokens in (
        ("protocol.budget", study.protocol.budget),
        ("retention.max_tokens", study.retention.max_tokens),
    ):
        if isinstance(context, int) and tokens >= context:
            raise ConfigError(
                f"{key} is {tokens} tokens behind the prompt, the start's whole context {context} ({folder / 'config.json'})"
            )


def blind(triggers: Iterable[str]) -> str | None:
    """Why a run must not start that would not see a changed configuration or module; None where it may.

    Args:
        triggers: names of Snakemake's rerun triggers in use.
    """
    missing = sorted(TRIGGERS - set(triggers))
    if not missing:
        return None
    return (
        f"--rerun-triggers leaves out {', '.join(missing)}: an edited configuration or library would plan nothing, and old evidence "
        "would pass for new; leave the option away"
    )
