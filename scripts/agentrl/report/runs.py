"""Where a study ran, how long and from which commit: `runs.json` and `runs.md` beside the summary, from every stage's provenance.

None of it follows from the evidence and no two runs agree in it, so it stands apart from the summary, whose bytes are the same for the
same work: it is no output of the summary's manifest and no input of a rule. Verification compares it with the provenance.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from agentrl.evidence.files import read_json
from agentrl.judgement.comparison import BASELINE
from agentrl.report.tables import Cell, Table, table

DATA, TEXT = "runs.json", "runs.md"
"""Beside the summary."""
PACKAGES = ("torch", "transformers", "trl", "peft", "vllm")
"""Whose versions the pilot's table names."""
MEASURED = (
    "seconds",
    "generation_seconds",
    "training_seconds",
    "resumed_from_step",
    "peak_memory_mb",
    "gpu_peak_memory_mb",
    "ended",
)
"""What differs from stage to stage, where a stage measured it."""
ENVIRONMENT = ("commit", "dirty", "python", "gpu", "driver", "cuda")
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
NO_CHECKOUT, CHANGED, CLEAN = (
    "none: ran from no checkout",
    "CHANGED: the code is not this commit's",
    "clean",
)
TITLE = "# Where the study ran, how long, from which commit"
ABOUT = (
    "From the `provenance.json` of every stage, last run of each. Seconds of a stage count loading, generation and training seconds do "
    "not; no two runs agree in them, so nothing here is an input of a rule or part of a manifest."
)
Stages = Mapping[str, Mapping[str, Any]]
"""Folder below the study -> facts of its last run."""


def collect(study: Path) -> dict[str, dict[str, Any]]:
    """Facts of every stage that the study's statistics rest on, and of the statistics.

    Args:
        study: `results/{study}`.

    Returns:
        Folder below the study -> facts, sorted as in JSON; a stage without a provenance has none ({}).
    """
    evaluated = [
        role for role in read_json(study / "statistics" / "manifest.json")["inputs"] if "/" in role
    ]
    candidates = sorted({role.rsplit("/", 1)[0] for role in evaluated} - {BASELINE})
    once = [
        *(f"tasks/{split}" for split in ("train", "dev", "test")),
        "retention",
        "start",
        "plan",
        "preflight",
        "selection",
    ]
    trained = [
        f"arms/{name}/{stage}" for name in candidates for stage in ("warmup", "train", "merged")
    ]
    wanted = [*once, *trained, *(f"policies/{role}" for role in evaluated), "statistics"]
    return {
        name: facts(study / name / "provenance.json")
        for name in sorted(wanted)
        if (study / name / "manifest.json").is_file()
    }


def facts(file: Path) -> dict[str, Any]:
    """What is told of one stage; of an evaluation that was taken over, the seconds of the study that sampled it."""
    if not file.is_file():
        return {}
    record = read_json(file)
    adopted = record.get("adopted")
    sampled = record if adopted is None else adopted["provenance"] or {}
    found = {name: record[name] for name in (*MEASURED, *ENVIRONMENT) if name in record}
    found |= {name: sampled[name] for name in ("generation_seconds",) if name in sampled}
    found |= {
        "packages": {
            name: record["packages"][name] for name in PACKAGES if name in record["packages"]
        }
    }
    found |= {"processor": record["host"]["processor"], "container": record["container"]["digest"]}
    return found if adopted is None else found | {"adopted": adopted["study"]}


def render(stages: Stages) -> str:
    """The page as Markdown."""
    said = "".join(f"- {note}\n" for note in notes(stages))
    parts = [f"{TITLE}\n{ABOUT}\n", said, *(made.markdown() for made in tables(stages))]
    return "\n".join(part for part in parts if part)


def notes(stages: Stages) -> list[str]:
    """What a reader must know of commits and seconds; nothing where every stage ran from one clean commit."""
    said = []
    for what, here in (("no checkout", _none), ("a changed checkout", _changed)):
        if found := [name for name, stage in stages.items() if here(stage)]:
            said.append(
                f"NOTE: {len(found)} of {len(stages)} stages ({_some(found)}) ran from {what}: no commit says which code they ran."
            )
    if len(commits := {stage["commit"] for stage in stages.values() if stage.get("commit")}) > 1:
        said.append(
            f"NOTE: stages ran from {len(commits)} commits: {', '.join(sorted(commit[:12] for commit in commits))}."
        )
    resumed = [
        f"{name} (step {stage['resumed_from_step']})"
        for name, stage in stages.items()
        if stage.get("resumed_from_step")
    ]
    said += [
        f"Resumed, so that its seconds are those of the last process only: {name}."
        for name in resumed
    ]
    said += [
        f"{name}: taken over from study {stage['adopted']}, which sampled it."
        for name, stage in stages.items()
        if "adopted" in stage
    ]
    said += [f"{name}: no provenance." for name, stage in stages.items() if not stage]
    return said


def _none(stage: Mapping[str, Any]) -> bool:
    return bool(stage) and stage["commit"] is None


def _changed(stage: Mapping[str, Any]) -> bool:
    return bool(stage) and stage["commit"] is not None and stage["dirty"]


def _some(names: Sequence[str]) -> str:
    return names[0] + ", ..." * (len(names) > 1)


def tables(stages: Stages) -> list[Table]:
    """The pilot's rows that do not follow from the evidence: seconds by policy, environments, and every stage."""
    return [seconds(stages), environments(stages), each_stage(stages)]


def seconds(stages: Stages) -> Table:
    """Training and generation seconds of every policy."""
    evaluated = [
        name.split("/", 1)[1].rsplit("/", 1) for name in stages if name.startswith("policies/")
    ]
    policies = sorted(
        {policy for policy, _ in evaluated}, key=lambda policy: (policy != BASELINE, policy)
    )

    def measured(stage: str, field: str) -> Cell:
        return lambda policy: stages.get(stage.format(policy), {}).get(field)

    rows = {"training seconds": measured("arms/{}/train", "training_seconds")}
    for measure in sorted({measure for _, measure in evaluated}):
        rows[f"generation seconds, {measure}"] = measured(
            f"policies/{{}}/{measure}", "generation_seconds"
        )
    return table("Seconds", "", policies, {name: _plain(cell) for name, cell in rows.items()})


def _plain(cell: Cell) -> Cell:
    """Seconds as they were recorded, not rounded to three digits."""
    return lambda column: None if cell(column) is None else str(cell(column))


def environments(stages: Stages) -> Table:
    """Every environment that a stage ran in."""
    found = {
        LETTERS[n] if n < len(LETTERS) else str(n): where
        for n, where in enumerate(_distinct(stages.values()))
    }
    rows: dict[str, Cell] = {
        "commit": lambda letter: found[letter]["commit"] or "none",
        "checkout": lambda letter: _checkout(found[letter]),
        "GPU": lambda letter: found[letter]["gpu"],
        "driver": lambda letter: found[letter].get("driver"),
        "CUDA": lambda letter: found[letter].get("cuda"),
        "processor": lambda letter: found[letter]["processor"],
        "container": lambda letter: found[letter]["container"],
        "Python": lambda letter: found[letter]["python"],
    }
    rows |= {name: _version(found, name) for name in PACKAGES}
    rows["stages"] = lambda letter: sum(
        bool(stage) and _where(stage) == found[letter] for stage in stages.values()
    )
    return table("Environment", "", list(found), rows)


def _version(found: Mapping[str, Mapping[str, Any]], package: str) -> Cell:
    return lambda letter: found[letter]["packages"].get(package)


def _checkout(where: Mapping[str, Any]) -> str:
    return NO_CHECKOUT if _none(where) else CHANGED if _changed(where) else CLEAN


def _where(stage: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: stage[name]
        for name in (*ENVIRONMENT, "packages", "processor", "container")
        if name in stage
    }


def _distinct(stages: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Environments in the order in which stages first name them."""
    found: list[dict[str, Any]] = []
    for stage in stages:
        if stage and (where := _where(stage)) not in found:
            found.append(where)
    return found


def each_stage(stages: Stages) -> Table:
    """Environment, seconds and memory of every stage."""
    known = _distinct(stages.values())

    def letter(stage: Mapping[str, Any]) -> str:
        number = known.index(_where(stage))
        return LETTERS[number] if number < len(LETTERS) else str(number)

    fields: dict[str, Cell] = {
        "environment": lambda name: letter(stages[name]),
        "seconds": lambda name: str(stages[name]["seconds"]),
        "peak memory, MB": lambda name: stages[name]["peak_memory_mb"],
        "peak GPU memory, MB": lambda name: stages[name].get("gpu_peak_memory_mb"),
    }
    rows = {name: _across(fields, name) for name, stage in stages.items() if stage}
    return table("Stages", "", list(fields), rows, head="stage")


def _across(fields: Mapping[str, Cell], name: str) -> Cell:
    return lambda field: fields[field](name)
