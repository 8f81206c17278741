# German agentic RL after SFT: tasks -> freeze -> baseline, train -> merge -> candidate -> statistics -> summary.
include: "rules/common.smk"
include: "rules/tasks.smk"
include: "rules/demo.smk" if STUDY.demo_policy else "rules/start.smk"
include: "rules/freeze.smk"
include: "rules/evaluate.smk"


rule all:
    default_target: True
    input:
        f"{R}/policies/baseline/agent-dev/manifest.json",
        f"{R}/policies/baseline/retention/manifest.json",
