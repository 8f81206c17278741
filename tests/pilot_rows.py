"""The pilot's tables and their rows, kept by hand: what the summary and the page of runs must show, in this order, and nothing else.

A measure that is taken out, renamed or added changes a line here. `SUMMARY` follows from the evidence (`summary.md`), `RUNS` does not
(`runs.md`): seconds, GPU, versions and commit differ from run to run.
"""

AGENT = [
    "episodes",
    "strict success",
    "valid workflow",
    "correct answer",
    "lookup",
    "calculation",
    "tool calls",
    "tool errors",
    "malformed finals",
    "malformed uncapped",
    "turn cap",
    "token cap",
    "observation cap",
    "assistant tokens",
    "external tokens",
    "infrastructure errors",
    "replayed calls",
    "checked tokens",
]
CHANGE = [
    "items",
    "trials",
    "wins",
    "losses",
    "ties",
    "change, points",
    "interval, points",
    "exact p",
    "gained by workflow",
    "gained by answer",
    "gained by both",
    "lost by workflow",
    "lost by answer",
    "lost by both",
]
PREFLIGHT = [
    "groups",
    "generations per group",
    "mixed groups, binary reward",
    "mixed groups, random reward",
    "mixed groups, shaped reward",
]
SUMMARY = {
    "Preflight on training tasks": [*PREFLIGHT, *AGENT],
    "Training": [
        "warm-up steps",
        "reward",
        "steps",
        "episodes",
        "unique tasks",
        "groups",
        "groups with reward variation",
        "mean reward",
        "strict success",
        "steps with nonzero gradient",
        "adapter tensors",
        "adapter tensors changed",
        "infrastructure errors",
        "replayed calls",
        "checked tokens",
        "warm-up, replayed calls",
        "warm-up, checked tokens",
    ],
    "Merge": [
        "tensors",
        "tensors changed",
        "tensors identical",
        "targets",
        "tied head",
        "largest logit difference",
        "tolerated logit difference",
        "update kept",
        "weights moved",
    ],
    "Agent evaluation, dev": AGENT,
    "Paired change against start, dev": CHANGE,
    "Agent evaluation, test": AGENT,
    "Paired change against start, test": CHANGE,
    "Retention (no tools)": [
        "items",
        "correct",
        "flexible extraction",
        "malformed finals",
        "malformed uncapped",
        "token cap",
        "assistant tokens",
        "infrastructure errors",
        "checked tokens",
        "wins",
        "losses",
        "ties",
        "change, points",
        "interval, points",
        "exact p",
        "zero-drop gate",
    ],
    "Release": ["release eligible", "blocked by"],
}
RUNS = {
    "Seconds": [
        "training seconds",
        "generation seconds, agent-dev",
        "generation seconds, agent-test",
        "generation seconds, retention",
    ],
    "Environment": [
        "commit",
        "checkout",
        "GPU",
        "driver",
        "CUDA",
        "processor",
        "container",
        "Python",
        "torch",
        "transformers",
        "trl",
        "peft",
        "vllm",
        "stages",
    ],
}


def rows(text: str, title: str) -> dict[str, list[str]]:
    """Row name -> cells of the table below a heading; the head row too."""
    body = text.split(f"## {title}\n", 1)[1].split("\n## ")[0]
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in body.splitlines()
        if line.startswith("|")
    ]
    return {name: values for name, *values in cells if name != "---"}


def names(text: str, title: str) -> list[str]:
    """Row names of the table below a heading, without its head."""
    return list(rows(text, title))[1:]
