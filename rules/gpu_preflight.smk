# On the node, before any model process: versions, disk, driver and GPU. Model rules take the report as `ancient`: a gate, no ingredient.
GPU_LOCK = "envs/gpu.txt" if STUDY.model.device == "cuda" and Path("envs/gpu.txt").exists() else "envs/cpu.txt"


rule gpu_preflight:
    input:
        section=f"{R}/config/model.json",
        lock=GPU_LOCK,
        code=code("gpu_preflight.py"),
    output:
        f"{R}/preflight/gpu/report.json",
    log:
        f"{R}/preflight/gpu/log.txt",
    params:
        checkpoints=len(CANDIDATES),
        out=subpath(output[0], parent=True),
    retries: 0
    resources:
        gpu=1,
    shell:
        "{GPU_PYTHON} scripts/gpu_preflight.py --section {input.section} --lock {input.lock} --checkpoints {params.checkpoints}"
        " --out {params.out} 2>&1 | tee {log}"
