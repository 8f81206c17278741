# Aggregates and plain words: no raw task or output leaves the evidence folders.


rule summary:
    input:
        verified=rules.verify.output,
        statistics=rules.statistics.output.manifest,
        evaluations=evaluations,
        training=expand(f"{R}/arms/{{policy}}/train/manifest.json", policy=CANDIDATES),
        merges=expand(f"{R}/arms/{{policy}}/merged/manifest.json", policy=CANDIDATES),
        plan=rules.plan.output.manifest,
        preflight=rules.preflight.output.report,
        section=f"{R}/config/statistics.json",
        code=code("summarize.py"),
    output:
        manifest=f"{R}/summary/manifest.json",
        data=f"{R}/summary/summary.json",
        text=f"{R}/summary/summary.md",
        runs=[f"{R}/summary/runs.json", f"{R}/summary/runs.md"],
    log:
        f"{R}/summary/log.txt",
    params:
        study=R,
        out=subpath(output.manifest, parent=True),
    localrule: True
    shell:
        "python scripts/summarize.py --study {params.study} --section {input.section} --out {params.out} > {log} 2>&1"


# What `all` asks for: every piece of evidence that verification reads, so that a deleted one is made again. Weights are no evidence: who
# deletes adapters and merged checkpoints of a finished study to save space reruns nothing.
def by_run(arms):
    return dict(arm=[arm for arm in arms for _ in STUDY.training.seeds], seed=[seed for _ in arms for seed in STUDY.training.seeds])


def evaluated_records(wildcards):
    """Records beside the manifests that the statistics consume."""
    return [f"{Path(file).parent}/{'answers' if 'retention' in file else 'episodes'}.jsonl" for file in evaluations(wildcards)]


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
    *expand([rules.warmup.output.manifest, rules.warmup.output.demonstrations], zip, **by_run(WARMED)),
    *expand([rules.train.output.manifest, rules.train.output.episodes, rules.train.output.steps], zip, **by_run(list(STUDY.arms))),
    *expand(rules.merge.output, zip, **by_run(list(STUDY.arms))),
    *manifests(["baseline", *CANDIDATES], BEFORE_CHOICE),  # by name: while the choice is open, `evaluations` names none of them
    *CHOICE,
]
