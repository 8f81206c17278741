# Paired comparisons of every candidate with the start policy, and the verdict on every arm.


rule statistics:
    input:
        section=f"{R}/config/statistics.json",
        design=f"{R}/config/design.json",  # what params say below, as a file: see code.smk
        evaluations=evaluations,
        selection=selection,
        code=code("compare.py"),
    output:
        manifest=f"{R}/statistics/manifest.json",
        comparison=f"{R}/statistics/comparison.json",
        verdict=f"{R}/statistics/verdict.json",
    log:
        f"{R}/statistics/log.txt",
    params:
        placebos=PLACEBOS,
        out=subpath(output.manifest, parent=True),
    localrule: True
    shell:
        "python scripts/compare.py --evaluations {input.evaluations} --placebos {params.placebos} --selection {input.selection}"
        " --section {input.section} --out {params.out} > {log} 2>&1"
