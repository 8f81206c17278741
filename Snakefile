# German agentic RL after SFT: tasks -> freeze -> baseline, plan, preflight -> train -> merge -> candidate -> statistics -> summary.
include: "rules/common.smk"
include: "rules/code.smk"
include: "rules/finished.smk"
include: "rules/cluster.smk"
include: "rules/gpu_preflight.smk"
include: "rules/tasks.smk"
include: "rules/demo.smk" if STUDY.demo_policy else "rules/start.smk"
include: "rules/freeze.smk"
include: "rules/evaluate.smk"
include: "rules/baselines.smk"
include: "rules/preflight.smk"
include: "rules/plan.smk"
include: "rules/warmup.smk"
include: "rules/train.smk"
include: "rules/merge.smk"
include: "rules/select.smk"
include: "rules/statistics.smk"
include: "rules/verify.smk"
include: "rules/report.smk"


rule all:
    default_target: True
    localrule: True
    input:
        EVIDENCE,
        evaluated_records,


onstart:
    refuse_to_replace()
    refuse_second_writers()


onsuccess:
    shell("python scripts/show_study.py --study {R}")
