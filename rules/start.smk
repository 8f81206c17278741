# The start policy of a real study: a checkpoint that exists already. Its content counts, whatever its path and time stamps.
from agentrl.policy.files import start_params


rule start:
    input:
        section=f"{R}/config/model.json",
        code=code("record_start.py"),
    output:
        manifest=f"{R}/start/manifest.json",
    log:
        f"{R}/start/log.txt",
    params:
        out=subpath(output.manifest, parent=True),
        *start_params(STUDY.model.start, Path(R, "start")),
    localrule: True
    shell:
        "python scripts/record_start.py --section {input.section} --out {params.out} > {log} 2>&1"
