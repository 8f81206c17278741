# Baseline and candidates are one rule with another wildcard: matching is structural, the manifest is the proof.


def policy_manifest(wildcards):
    if wildcards.policy == "baseline":
        return f"{R}/start/manifest.json"
    return f"{R}/arms/{wildcards.policy}/merged/manifest.json"


def evaluated(taken_over):
    """Policies that an evaluation rule may make: a baseline that is taken over has its own rule and no fallback."""
    return "|".join(CANDIDATES if taken_over else ["baseline", *CANDIDATES])


def ledger_arguments(wildcards):
    """Looks at the test split go on record; dev is there to be looked at."""
    return f"--study {STUDY.study} --ledger results/ledger.jsonl" if wildcards.split == "test" else ""


def manifests(policies, measures):
    """Evaluations as the statistics consume them."""
    return expand(f"{R}/policies/{{policy}}/{{measure}}/manifest.json", policy=policies, measure=measures)


rule evaluate_agent:
    input:
        policy=policy_manifest,
        tasks=f"{R}/tasks/{{split}}/tasks.jsonl",
        freeze=f"{R}/freeze/agent-{{split}}.json",
        node=ancient(rules.gpu_preflight.output),
        code=code("evaluate_agent.py"),
    output:
        manifest=f"{R}/policies/{{policy}}/agent-{{split}}/manifest.json",
        episodes=f"{R}/policies/{{policy}}/agent-{{split}}/episodes.jsonl",
    wildcard_constraints:
        policy=evaluated(STUDY.baselines.agent),
    log:
        f"{R}/policies/{{policy}}/agent-{{split}}/log.txt",
    params:
        out=subpath(output.manifest, parent=True),
        ledger=ledger_arguments,
    resources:
        gpu=1,
    shell:
        "{GPU_PYTHON} scripts/evaluate_agent.py --name {wildcards.policy} --policy {input.policy} --tasks {input.tasks}"
        " --freeze {input.freeze} {params.ledger} --out {params.out} 2> {log} | tee -a {log}"


rule evaluate_retention:
    input:
        policy=policy_manifest,
        frozen=rules.retention_items.output.frozen,
        freeze=f"{R}/freeze/retention.json",
        node=ancient(rules.gpu_preflight.output),
        code=code("evaluate_retention.py"),
    output:
        manifest=f"{R}/policies/{{policy}}/retention/manifest.json",
        answers=f"{R}/policies/{{policy}}/retention/answers.jsonl",
    wildcard_constraints:
        policy=evaluated(STUDY.baselines.retention),
    log:
        f"{R}/policies/{{policy}}/retention/log.txt",
    params:
        out=subpath(output.manifest, parent=True),
    resources:
        gpu=1,
    shell:
        "{GPU_PYTHON} scripts/evaluate_retention.py --name {wildcards.policy} --policy {input.policy} --items {input.frozen}"
        " --freeze {input.freeze} --out {params.out} 2> {log} | tee -a {log}"
