# Before any training: what the start policy does on a few training tasks, and for each arm whether it could learn from that.


rule preflight:
    input:
        section=f"{R}/config/preflight.json",
        start=f"{R}/start/manifest.json",
        tasks=f"{R}/tasks/train/tasks.jsonl",
        freeze=f"{R}/freeze/train.json",
        node=ancient(rules.gpu_preflight.output),
        code=code("preflight.py"),
    output:
        manifest=f"{R}/preflight/manifest.json",
        episodes=f"{R}/preflight/episodes.jsonl",
        report=f"{R}/plan/preflight.json",
    log:
        f"{R}/preflight/log.txt",
    params:
        out=subpath(output.manifest, parent=True),
    resources:
        gpu=1,
    shell:
        "{GPU_PYTHON} scripts/preflight.py --section {input.section} --start {input.start} --tasks {input.tasks} --freeze {input.freeze}"
        " --report {output.report} --out {params.out} 2> {log} | tee -a {log}"


# One job per arm: a hopeless arm fails alone, and another arm samples nothing anew.
rule admit:
    input:
        preflight=rules.preflight.output.manifest,
        episodes=rules.preflight.output.episodes,
        arm=f"{R}/config/arm-{{arm}}.json",
        code=code("admit_arm.py"),
    output:
        f"{R}/preflight/admitted/{{arm}}.json",
    log:
        f"{R}/preflight/admitted/{{arm}}.log",
    localrule: True
    shell:
        "python scripts/admit_arm.py --arm {wildcards.arm} --arm-section {input.arm} --preflight {input.preflight} --out {output}"
        " 2> >(tee {log} >&2)"
