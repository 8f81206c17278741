# Paired comparisons of every candidate with the start policy, and the verdict on every arm.


rule statistics:
    input:
        section=f"{R}/config/statistics.json",
        evaluations=evaluations,
        selection=selection,
    output:
        manifest=f"{R}/statistics/manifest.json",
        comparison=f"{R}/statistics/comparison.json",
        verdict=f"{R}/statistics/verdict.json",
    log:
        f"{R}/statistics/log.txt",
    params:
        placebos=STUDY.placebos,
        out=subpath(output.manifest, parent=True),
        code=code_digest("compare.py"),
    localrule: True
    shell:
        "python scripts/compare.py --evaluations {input.evaluations} --placebos {params.placebos} --selection {input.selection}"
        " --section {input.section} --out {params.out} > {log} 2>&1"
