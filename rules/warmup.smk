# Some arms are taught by an expert before GRPO.


rule warmup:
    input:
        start=f"{R}/start/manifest.json",
        tasks=f"{R}/tasks/train/tasks.jsonl",
        freeze=f"{R}/freeze/train.json",
        arm=f"{R}/config/arm-{{arm}}.json",
        admitted=ancient(f"{R}/preflight/admitted/{{arm}}.json"),
        plan=ancient(rules.plan.output.power),
        node=ancient(rules.gpu_preflight.output),
        code=code("warm_up.py"),
    output:
        manifest=f"{R}/arms/{{arm}}/seed-{{seed}}/warmup/manifest.json",
        demonstrations=f"{R}/arms/{{arm}}/seed-{{seed}}/warmup/demonstrations.jsonl",
        adapter=f"{R}/arms/{{arm}}/seed-{{seed}}/warmup/adapter/adapter_model.safetensors",
    log:
        f"{R}/arms/{{arm}}/seed-{{seed}}/warmup/log.txt",
    params:
        out=subpath(output.manifest, parent=True),
    resources:
        gpu=1,
    shell:
        "{GPU_PYTHON} scripts/warm_up.py --arm {wildcards.arm} --seed {wildcards.seed} --arm-section {input.arm} --start {input.start}"
        " --tasks {input.tasks} --freeze {input.freeze} --out {params.out} 2> {log} | tee -a {log}"
