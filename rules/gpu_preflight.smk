# On the node, before any model process: versions, disk, driver and GPU. Model rules take the report as `ancient`: a gate, no ingredient.
def node_lock():
    """The file that pins the packages of GPU rules; refused as a message where it is missing."""
    try:
        return profile.lock_of(STUDY.model.device)
    except profile.ProfileError as error:
        raise WorkflowError(str(error)) from None


rule gpu_preflight:
    input:
        section=f"{R}/config/model.json",
        lock=node_lock(),
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
        "{GPU_PYTHON} scripts/gpu_preflight.py --section {input.section} --lock {input.lock:q} --checkpoints {params.checkpoints}"
        " --out {params.out} 2>&1 | tee {log}"
