# The adapter as a standalone checkpoint, audited tensor by tensor.


rule merge:
    input:
        start=f"{R}/start/manifest.json",
        train=rules.train.output.manifest,
        section=f"{R}/config/model.json",
        node=ancient(rules.gpu_preflight.output),
        code=code("merge_adapter.py"),
    output:
        manifest=f"{R}/arms/{{arm}}/seed-{{seed}}/merged/manifest.json",
        audit=f"{R}/arms/{{arm}}/seed-{{seed}}/merged/merge.json",
    log:
        f"{R}/arms/{{arm}}/seed-{{seed}}/merged/log.txt",
    params:
        out=subpath(output.manifest, parent=True),
    resources:
        gpu=1,
    shell:
        "{GPU_PYTHON} scripts/merge_adapter.py --start {input.start} --train {input.train} --model-section {input.section}"
        " --out {params.out} 2> {log} | tee -a {log}"
