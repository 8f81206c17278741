"""A finished study's folder: whether a run may replace what lies in it (`finished` in the configuration).

The pilot's recipe refuses a folder that was used before. This pipeline remakes exactly what a change invalidates and leaves no trace of
what was there, which is right while a study is worked on, and wrong once somebody has read its summary.
"""

from collections.abc import Iterable
from pathlib import Path

RECOMPUTED = frozenset(
    {
        "all",
        "section",
        "gpu_preflight",
        "freeze",
        "plan",
        "admit",
        "statistics",
        "verify",
        "summary",
    }
)
"""Rules that draw conclusions from evidence, or look at the configuration and the node: they may run again, for the same evidence gives
the same bytes. Every other rule makes evidence, a new one too; so does `select`, because what it chooses is evaluated on test next."""
CODE = "code_"
"""Start of the names of rules that write down a command's code (`rules/code.smk`)."""


def refusal(study: Path, setting: str, planned: Iterable[str]) -> str | None:
    """Why a run must not start; None where it may.

    Args:
        study: `results/{study}`.
        setting: `finished` in the configuration: `replace` or `refuse`.
        planned: names of the rules whose jobs the run holds.
    """
    summary = study / "summary" / "manifest.json"
    making = sorted(
        {name for name in planned if name not in RECOMPUTED and not name.startswith(CODE)}
    )
    if setting == "replace" or not making or not summary.is_file():
        return None
    return (
        f"{study} holds a finished study ({summary} exists), `finished: refuse` is configured, and this run would make evidence in it anew "
        f"({', '.join(making)}): give the run another name (`study`), take back the change that `snakemake -n` names, or set "
        "`finished: replace`"
    )
