# The frozen data of a study: tasks of each split and retention items.


rule tasks:
    input:
        section=f"{R}/config/tasks-{{split}}.json",
        code=code("generate_tasks.py"),
    output:
        manifest=f"{R}/tasks/{{split}}/manifest.json",
        tasks=f"{R}/tasks/{{split}}/tasks.jsonl",
    log:
        f"{R}/tasks/{{split}}/log.txt",
    params:
        out=subpath(output.manifest, parent=True),
    localrule: True
    shell:
        "python scripts/generate_tasks.py --section {input.section} --split {wildcards.split} --out {params.out} > {log} 2>&1"


rule retention_items:
    input:
        section=f"{R}/config/retention.json",
        ids=STUDY.retention.ids_from or [],
        code=code("freeze_retention_items.py"),
    output:
        manifest=f"{R}/retention/manifest.json",
        frozen=f"{R}/retention/items.jsonl",
    log:
        f"{R}/retention/log.txt",
    params:
        out=subpath(output.manifest, parent=True),
        cache="results/cache",
    localrule: True
    shell:
        "python scripts/freeze_retention_items.py --section {input.section} --ids-from {input.ids:q} --cache {params.cache}"
        " --out {params.out} > {log} 2>&1"
