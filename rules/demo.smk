# Demo only: the pipeline makes its own start policy.
DEMO_THREADS = STUDY.demo_policy.threads


rule demo_base:
    input:
        recipe=f"{R}/config/demo-base.json",
        node=ancient(rules.gpu_preflight.output),
        code=code("train_demo_base.py"),
    output:
        manifest=f"{R}/demo/base/manifest.json",
    log:
        f"{R}/demo/base/log.txt",
    params:
        out=subpath(output.manifest, parent=True),
    threads: DEMO_THREADS
    resources:
        gpu=1,
    shell:
        "{GPU_PYTHON} scripts/train_demo_base.py --recipe {input.recipe} --out {params.out} 2> {log} | tee -a {log}"


rule demo_sft:
    input:
        recipe=f"{R}/config/demo-sft.json",
        base=rules.demo_base.output.manifest,
        node=ancient(rules.gpu_preflight.output),
        code=code("train_demo_sft.py"),
    output:
        manifest=f"{R}/start/manifest.json",
    log:
        f"{R}/start/log.txt",
    params:
        out=subpath(output.manifest, parent=True),
    threads: DEMO_THREADS
    resources:
        gpu=1,
    shell:
        "{GPU_PYTHON} scripts/train_demo_sft.py --recipe {input.recipe} --base {input.base} --out {params.out} 2> {log} | tee -a {log}"
