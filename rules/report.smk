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
    output:
        manifest=f"{R}/summary/manifest.json",
        data=f"{R}/summary/summary.json",
        text=f"{R}/summary/summary.md",
    log:
        f"{R}/summary/log.txt",
    params:
        study=R,
        out=subpath(output.manifest, parent=True),
        code=code_digest("summarize.py"),
    localrule: True
    shell:
        "python scripts/summarize.py --study {params.study} --section {input.section} --out {params.out} > {log} 2>&1"
