# Aggregates and plain words: no raw task or output leaves the evidence folders.


rule summary:
    input:
        verified=rules.verify.output,
        statistics=rules.statistics.output.manifest,
        evaluations=rules.statistics.input.evaluations,
        training=expand(f"{R}/arms/{{policy}}/train/manifest.json", policy=CANDIDATES),
        merges=expand(f"{R}/arms/{{policy}}/merged/manifest.json", policy=CANDIDATES),
        plan=rules.plan.output.manifest,
        section=f"{R}/config/statistics.json",
        code=code("summarize.py"),
    output:
        manifest=f"{R}/summary/manifest.json",
        data=f"{R}/summary/summary.json",
        text=f"{R}/summary/summary.md",
    log:
        f"{R}/summary/log.txt",
    params:
        study=R,
        candidates=CANDIDATES,
        measures=MEASURES,
        out=subpath(output.manifest, parent=True),
    localrule: True
    shell:
        "python scripts/summarize.py --study {params.study} --candidates {params.candidates} --measures {params.measures}"
        " --section {input.section} --out {params.out} > {log} 2>&1"


# What `all` asks for: every piece of evidence that verification reads, so that a deleted one is made again. Weights are no evidence: who
# deletes adapters and merged checkpoints of a finished study to save space reruns nothing.
ARM_AND_SEED = dict(arm=[name.split("/seed-")[0] for name in CANDIDATES], seed=[name.split("/seed-")[1] for name in CANDIDATES])
EVIDENCE = [
    *rules.summary.output,
    *rules.verify.output,
    *rules.statistics.output,
    *rules.plan.output,
    *rules.preflight.output,
    *expand(rules.admit.output, arm=STUDY.arms),
    *expand(rules.section.output, section=SECTIONS),
    *expand(rules.tasks.output, split=study_config.SPLITS),
    *rules.retention_items.output,
    f"{R}/start/manifest.json",
    *expand(rules.freeze.output, stage=["train", *MEASURES]),
    *expand([rules.train.output.manifest, rules.train.output.episodes, rules.train.output.steps], zip, **ARM_AND_SEED),
    *expand(rules.merge.output, zip, **ARM_AND_SEED),
    *expand(rules.evaluate_agent.output, policy=["baseline", *CANDIDATES], split=[m.removeprefix("agent-") for m in MEASURES if m != "retention"]),
    *expand(rules.evaluate_retention.output, policy=["baseline", *CANDIDATES]),
]
