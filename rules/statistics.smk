# Paired comparisons of every candidate with the start policy.
MEASURES = [*(f"agent-{split}" for split in STUDY.evaluation.splits), "retention"]


rule statistics:
    input:
        section=f"{R}/config/statistics.json",
        evaluations=expand(f"{R}/policies/{{policy}}/{{measure}}/manifest.json", policy=["baseline", *CANDIDATES], measure=MEASURES),
    output:
        manifest=f"{R}/statistics/manifest.json",
        comparison=f"{R}/statistics/comparison.json",
    log:
        f"{R}/statistics/log.txt",
    params:
        policies=f"{R}/policies",
        candidates=CANDIDATES,
        measures=MEASURES,
        out=subpath(output.manifest, parent=True),
        code=code_digest("compare.py"),
    localrule: True
    shell:
        "python scripts/compare.py --policies {params.policies} --candidates {params.candidates} --measures {params.measures}"
        " --section {input.section} --out {params.out} > {log} 2>&1"
