# The start policy of a real study: a checkpoint that exists already.


rule start:
    input:
        section=f"{R}/config/model.json",
    output:
        manifest=f"{R}/start/manifest.json",
    log:
        f"{R}/start/log.txt",
    params:
        out=subpath(output.manifest, parent=True),
        code=code_digest("record_start.py"),
    localrule: True
    shell:
        "python scripts/record_start.py --section {input.section} --out {params.out} > {log} 2>&1"
