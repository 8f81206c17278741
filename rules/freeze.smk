# One freeze per stage, holding only what that stage consumes.
FROZEN_SECTIONS = {
    "train": ("model", "protocol", "decoding", "reward", "training"),
    "retention": ("model", "retention"),
    "agent-dev": ("model", "protocol", "decoding", "evaluation"),
    "agent-test": ("model", "protocol", "decoding", "evaluation"),
}


def frozen_data(wildcards):
    if wildcards.stage == "retention":
        return rules.retention_items.output.frozen
    return f"{R}/tasks/{wildcards.stage.removeprefix('agent-')}/tasks.jsonl"


def frozen_baseline(wildcards):
    """A recorded retention baseline is frozen before any candidate is evaluated against it."""
    return (wildcards.stage == "retention" and STUDY.baselines.recorded_file) or []


def frozen_sections(wildcards):
    return section(*FROZEN_SECTIONS[wildcards.stage])


rule freeze:
    input:
        start=f"{R}/start/manifest.json",
        data=frozen_data,
        baseline=frozen_baseline,
        sections=frozen_sections,
        code=code("freeze_stage.py"),
    output:
        f"{R}/freeze/{{stage}}.json",
    log:
        f"{R}/freeze/{{stage}}.log",
    localrule: True
    shell:
        "python scripts/freeze_stage.py --stage {wildcards.stage} --start {input.start} --data {input.data}"
        " --baseline {input.baseline:q} --sections {input.sections} --out {output} > {log} 2>&1"
