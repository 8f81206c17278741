"""What each change must rerun, kept by hand beside the rules: the tests compare it with what Snakemake plans.

Three tables. `reads` says what a job consumes; `KEYS` which section a configuration key stands in; `COMMANDS` which command a rule runs.
A new key, rule or lazily read file is one new line here. Jobs are named by rule and wildcards, e.g. `train pilot 3`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import product

SPLITS = ("train", "dev", "test")
UNDECIDED = ""


@dataclass(frozen=True)
class Design:
    """The jobs of one study: its arms, seeds, evaluated splits, and whether it makes its own start policy."""

    arms: tuple[str, ...] = ("pilot", "placebo")
    seeds: tuple[int, ...] = (3,)
    splits: tuple[str, ...] = ("dev", "test")
    demo: bool = False
    warmed: tuple[str, ...] = ()
    """Arms with a warm-up."""
    chosen: str | None = None
    """The arm that is evaluated on test, where dev chooses it; `UNDECIDED` until that has happened."""

    @property
    def runs(self) -> list[tuple[str, int]]:
        """Every training run."""
        return list(product(self.arms, self.seeds))

    @property
    def models(self) -> dict[str, str]:
        """Evaluated policy -> the job that makes its checkpoint."""
        return {"baseline": self.start} | {
            f"{arm}/seed-{seed}": f"merge {arm} {seed}" for arm, seed in self.runs
        }

    @property
    def looks(self) -> list[tuple[str, str]]:
        """Evaluated policy and split. A plan made before the choice knows no look at test, not even the start policy's."""
        every = product(self.models, self.splits)
        if self.chosen is None:
            return list(every)
        on_test = (
            []
            if self.chosen == UNDECIDED
            else ["baseline", *(f"{self.chosen}/seed-{seed}" for seed in self.seeds)]
        )
        return [(policy, split) for policy, split in every if split != "test" or policy in on_test]

    @property
    def start(self) -> str:
        """The job that makes the start policy."""
        return "demo_sft" if self.demo else "start"


def reads(design: Design) -> dict[str, set[str]]:
    """Job -> the jobs whose outputs it consumes; its code comes on top. Files that must merely exist (a gate, such as the look at
    the node before every model process) are not."""
    start, arms, runs, splits = design.start, design.arms, design.runs, design.splits
    agent = {f"evaluate_agent {policy} {split}" for policy, split in design.looks}
    selected = {"select"} if design.chosen is not None else set()
    retention = {f"evaluate_retention {policy}" for policy in design.models}
    jobs = {
        **{f"tasks {split}": {f"section tasks-{split}"} for split in SPLITS},
        "retention_items": {"section retention"},
        **({} if design.demo else {"start": {"section model"}}),
        **(
            {"demo_base": {"section demo-base"}, "demo_sft": {"section demo-sft", "demo_base"}}
            if design.demo
            else {}
        ),
        "freeze train": {
            start,
            "tasks train",
            *sections("model", "protocol", "decoding", "reward", "training"),
        },
        "freeze retention": {start, "retention_items", *sections("model", "retention")},
        **{
            f"freeze agent-{s}": {
                start,
                f"tasks {s}",
                *sections("model", "protocol", "decoding", "evaluation"),
            }
            for s in splits
        },
        "preflight": {start, "tasks train", "freeze train", "section preflight"},
        **{f"admit {arm}": {"preflight", f"section arm-{arm}"} for arm in arms},
        "plan": {"section plan"},
        "gpu_preflight": {"section model"},
        **{
            f"train {arm} {seed}": {start, "tasks train", "freeze train", f"section arm-{arm}"}
            for arm, seed in runs
        },
        **{
            f"merge {arm} {seed}": {start, f"train {arm} {seed}", "section model"}
            for arm, seed in runs
        },
        **{
            f"evaluate_agent {p} {s}": {design.models[p], f"tasks {s}", f"freeze agent-{s}"}
            for p, s in design.looks
        },
        **{
            f"evaluate_retention {p}": {model, "retention_items", "freeze retention"}
            for p, model in design.models.items()
        },
        **{
            job: {"section design", *(f"evaluate_agent {policy} dev" for policy in design.models)}
            for job in selected
        },
        "statistics": {*sections("statistics", "design"), *agent, *retention, *selected},
        "verify": {
            "statistics",
            "plan",
            "preflight",
            *(f"admit {arm}" for arm in arms),
            *(f"tasks {split}" for split in SPLITS),
        }
        | {f"train {arm} {seed}" for arm, seed in runs},
        "summary": {"verify", "statistics", "plan", "preflight", "section statistics"},
    }
    for arm, seed in product(design.warmed, design.seeds):
        warmup, train = f"warmup {arm} {seed}", f"train {arm} {seed}"
        jobs |= {warmup: jobs[train], train: {*jobs[train], warmup}}
    jobs |= {job: set() for job in set().union(*jobs.values()) - jobs.keys()}
    jobs = {job: inputs | {code(COMMANDS[job.split()[0]])} for job, inputs in jobs.items()}
    return jobs | {job: set() for job in set().union(*jobs.values()) - jobs.keys()}


def sections(*names: str) -> list[str]:
    """Jobs that write section files."""
    return [f"section {name}" for name in names]


def code(command: str) -> str:
    """The job that writes down which code a command is."""
    return f"code_{command.removesuffix('.py')}"


def wave(first: Iterable[str], design: Design) -> set[str]:
    """`first`, as far as the design has such jobs, and every job that consumes what another one of the wave makes."""
    consumed = reads(design)
    found = set(first) & consumed.keys()
    while grown := {job for job, inputs in consumed.items() if inputs & found} - found:
        found |= grown
    if (
        "select" in found and design.chosen != UNDECIDED
    ):  # the choice is open again: which policies see test is planned when it is made
        return found & reads(replace(design, chosen=UNDECIDED)).keys()
    return found


TASKS = sections(*(f"tasks-{split}" for split in SPLITS))
DEMO = sections("demo-base", "demo-sft")
KEYS: dict[str, list[str]] = {
    "finished": [],  # whether a run may start; no job reads it
    "model": sections("model"),
    "tasks": [*TASKS, *DEMO],
    "tasks.seed": TASKS,
    "tasks.splits.train": sections("tasks-train"),
    "tasks.splits.dev": sections("tasks-dev"),
    "tasks.splits.test": sections("tasks-test", "plan"),
    "protocol": [*sections("protocol"), *DEMO],
    "decoding": sections("decoding"),
    "reward": sections("reward"),
    "training": sections("training"),
    "training.group_size": sections("training", "preflight"),
    "arms.pilot": sections("arm-pilot"),
    "arms.pilot.reward": sections(
        "arm-pilot", "plan", "design"
    ),  # a placebo is no arm that the plan counts
    "arms.placebo": sections("arm-placebo"),
    "arms.placebo.reward": sections("arm-placebo", "plan", "design"),
    "preflight": sections("preflight"),
    "evaluation": sections("evaluation"),
    "evaluation.trials": sections("evaluation", "plan"),
    "retention": sections("retention"),
    "retention.system": [*sections("retention"), *DEMO],
    "retention.prompt": [*sections("retention"), *DEMO],
    "retention.items": sections("retention", "plan"),
    "statistics": sections("statistics"),
    "statistics.alpha": sections("statistics", "plan"),
    "plan": sections("plan"),
    "demo_policy.threads": DEMO,
    "demo_policy.architecture": sections("demo-base"),
    "demo_policy.drill": sections("demo-base"),
    "demo_policy.base": sections("demo-base"),
    "demo_policy.sft": sections("demo-sft"),
    "demo_policy.sft_lora": sections("demo-sft"),
}
"""Key, or a key above it (the longest counts) -> the sections it stands in."""

DESIGN_KEYS = {
    "study", "training.seeds", "evaluation.splits", "evaluation.select", "retention.ids_from", "baselines.agent", "baselines.retention",
}  # fmt: skip
"""Keys that say which jobs there are: each has a test of its own."""


def first_jobs(key: str) -> list[str]:
    """Sections of one key. Raises KeyError for a key nobody thought about: give it a line in `KEYS`."""
    parts = key.split(".")
    for length in range(len(parts), 0, -1):
        if (found := ".".join(parts[:length])) in KEYS:
            return KEYS[found]
    raise KeyError(f"{key}: no line in KEYS says what a change of it reruns")


COMMANDS: dict[str, str] = {
    "section": "write_section.py",
    "tasks": "generate_tasks.py",
    "retention_items": "freeze_retention_items.py",
    "start": "record_start.py",
    "demo_base": "train_demo_base.py",
    "demo_sft": "train_demo_sft.py",
    "gpu_preflight": "gpu_preflight.py",
    "freeze": "freeze_stage.py",
    "evaluate_agent": "evaluate_agent.py",
    "evaluate_retention": "evaluate_retention.py",
    "preflight": "preflight.py",
    "admit": "admit_arm.py",
    "plan": "plan.py",
    "warmup": "warm_up.py",
    "train": "train.py",
    "merge": "merge_adapter.py",
    "select": "select_arm.py",
    "statistics": "compare.py",
    "verify": "verify.py",
    "summary": "summarize.py",
}
"""Rule -> the command it runs; rules of `baselines.smk` are no part of the studies compared here."""

DATA = ("cities", "customers", "goods", "order_total", "scaffold")
LATE: dict[str, tuple[str, ...]] = {
    "agentrl/tasks/families.py": tuple(f"agentrl/tasks/data/{name}.json" for name in DATA),
    "agentrl/report/summary.py": ("agentrl/report/templates/summary.md.j2",),
    "agentrl/engine/loading.py": ("agentrl/engine/vllm.py",),  # where it is installed
    "agentrl/engine/static/forward.py": ("agentrl/engine/static/attention.py",),  # on a GPU
    "agentrl/verify/merges.py": (  # with --checkpoints
        "agentrl/policy/merge.py",
        "agentrl/policy/checkpoint.py",
        "agentrl/policy/files.py",
        "agentrl/verify/sums.py",
    ),
}
"""Module -> files it reads or imports only when it runs."""


def users(file: str, imported: Mapping[str, Iterable[str]]) -> set[str]:
    """Jobs that write down the code of a command which rests on a file below scripts/.

    Args:
        file: e.g. `agentrl/training/grpo.py`, or a command.
        imported: command -> the files that Python really loaded for it.
    """
    rests = {
        c: {c, *loaded, *(late for module in loaded for late in LATE.get(module, ()))}
        for c, loaded in imported.items()
    }
    return {code(command) for command, files in rests.items() if file in files}
