# GRPO of one arm with one seed; resumable from an undeclared work folder.


def warmed(wildcards):
    return f"{R}/arms/{wildcards.arm}/seed-{wildcards.seed}/warmup/manifest.json" if wildcards.arm in WARMED else []


rule train:
    input:
        start=f"{R}/start/manifest.json",
        tasks=f"{R}/tasks/train/tasks.jsonl",
        freeze=f"{R}/freeze/train.json",
        arm=f"{R}/config/arm-{{arm}}.json",
        warmup=warmed,
        admitted=ancient(f"{R}/preflight/admitted/{{arm}}.json"),  # a gate, not an ingredient: another preflight retrains nothing
        plan=ancient(rules.plan.output.power),  # must exist; a plan for one seed more retrains nothing
        node=ancient(rules.gpu_preflight.output),
        code=code("train.py"),
    output:
        manifest=f"{R}/arms/{{arm}}/seed-{{seed}}/train/manifest.json",
        episodes=f"{R}/arms/{{arm}}/seed-{{seed}}/train/episodes.jsonl",
        steps=f"{R}/arms/{{arm}}/seed-{{seed}}/train/steps.jsonl",
        adapter=f"{R}/arms/{{arm}}/seed-{{seed}}/train/adapter/adapter_model.safetensors",
    log:
        f"{R}/arms/{{arm}}/seed-{{seed}}/train/log.txt",
    params:
        out=subpath(output.manifest, parent=True),
        work=f"{R}/arms/{{arm}}/seed-{{seed}}/work",
    resources:
        gpu=1,
    shell:
        "{GPU_PYTHON} scripts/train.py --arm {wildcards.arm} --seed {wildcards.seed} --arm-section {input.arm} --start {input.start}"
        " --tasks {input.tasks} --freeze {input.freeze} --warmup {input.warmup}"
        " --work {params.work} --out {params.out} 2> {log} | tee -a {log}"
