# Paired comparisons of every candidate with the start policy, and the verdict on every arm.


rule statistics:
    input:
        section=f"{R}/config/statistics.json",
        design=f"{R}/config/design.json",  # what params say below, as a file: see code.smk
        evaluations=expand(f"{R}/policies/{{policy}}/{{measure}}/manifest.json", policy=["baseline", *CANDIDATES], measure=MEASURES),
        code=code("compare.py"),
    output:
        manifest=f"{R}/statistics/manifest.json",
        comparison=f"{R}/statistics/comparison.json",
        verdict=f"{R}/statistics/verdict.json",
    log:
        f"{R}/statistics/log.txt",
    params:
        policies=f"{R}/policies",
        candidates=CANDIDATES,
        placebos=PLACEBOS,
        measures=MEASURES,
        out=subpath(output.manifest, parent=True),
    localrule: True
    shell:
        "python scripts/compare.py --policies {params.policies} --candidates {params.candidates} --measures {params.measures}"
        " --placebos {params.placebos}"
        " --section {input.section} --out {params.out} > {log} 2>&1"
