# Re-execute every tool call and recompute every number before anything is summarised.


rule verify:
    input:
        statistics=rules.statistics.output.manifest,
        plan=rules.plan.output.manifest,
        preflight=rules.preflight.output.manifest,
        admitted=expand(rules.admit.output, arm=STUDY.arms),
        training=expand(f"{R}/arms/{{policy}}/train/manifest.json", policy=CANDIDATES),
        tasks=expand(f"{R}/tasks/{{split}}/manifest.json", split=study_config.SPLITS),
        code=code("verify.py"),
    output:
        f"{R}/verify/verify.json",
    log:
        f"{R}/verify/log.txt",
    params:
        study=R,
        out=subpath(output[0], parent=True),
    localrule: True
    shell:
        "python scripts/verify.py {params.study} --before-summary --out {params.out} > {log} 2>&1"
