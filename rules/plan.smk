# What the design can see, said before training. Refuses a weak design where `plan.refuse_weak` is set.


rule plan:
    input:
        section=f"{R}/config/plan.json",
        code=code("plan.py"),
    output:
        manifest=f"{R}/plan/manifest.json",
        power=f"{R}/plan/power.json",
        plot=f"{R}/plan/power.png",
    log:
        f"{R}/plan/log.txt",
    params:
        study=R,
        jobs=JOBS,
        out=subpath(output.manifest, parent=True),
    localrule: True
    shell:
        "python scripts/plan.py --study {params.study} --jobs {params.jobs}"
        " --section {input.section} --out {params.out} 2>&1 | tee {log}"
