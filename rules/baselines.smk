# Baselines that are taken over instead of run. Then no other rule may make them: a wrong path is an error, never a silent evaluation.
EARLIER = STUDY.baselines.earlier


if "agent" in EARLIER:

    rule adopt_agent:
        input:
            manifest=f"{EARLIER['agent']}/policies/baseline/agent-{{split}}/manifest.json",
            episodes=f"{EARLIER['agent']}/policies/baseline/agent-{{split}}/episodes.jsonl",
            policy=f"{R}/start/manifest.json",
            tasks=f"{R}/tasks/{{split}}/tasks.jsonl",
            freeze=f"{R}/freeze/agent-{{split}}.json",
            code=code("adopt_baseline.py"),
        output:
            manifest=f"{R}/policies/baseline/agent-{{split}}/manifest.json",
            episodes=f"{R}/policies/baseline/agent-{{split}}/episodes.jsonl",
        log:
            f"{R}/policies/baseline/agent-{{split}}/log.txt",
        params:
            earlier=EARLIER["agent"],
            out=subpath(output.manifest, parent=True),
        localrule: True
        shell:
            "python scripts/adopt_baseline.py --earlier {params.earlier:q} --policy {input.policy} --tasks {input.tasks}"
            " --freeze {input.freeze} --out {params.out} > {log} 2>&1"


if "retention" in EARLIER:

    rule adopt_retention:
        input:
            manifest=f"{EARLIER['retention']}/policies/baseline/retention/manifest.json",
            answers=f"{EARLIER['retention']}/policies/baseline/retention/answers.jsonl",
            policy=f"{R}/start/manifest.json",
            frozen=rules.retention_items.output.frozen,
            freeze=f"{R}/freeze/retention.json",
            code=code("adopt_baseline.py"),
        output:
            manifest=f"{R}/policies/baseline/retention/manifest.json",
            answers=f"{R}/policies/baseline/retention/answers.jsonl",
        log:
            f"{R}/policies/baseline/retention/log.txt",
        params:
            earlier=EARLIER["retention"],
            out=subpath(output.manifest, parent=True),
        localrule: True
        shell:
            "python scripts/adopt_baseline.py --earlier {params.earlier:q} --policy {input.policy} --items {input.frozen}"
            " --freeze {input.freeze} --out {params.out} > {log} 2>&1"


if STUDY.baselines.recorded_file:

    rule import_retention:
        input:
            recorded=STUDY.baselines.recorded_file,
            policy=f"{R}/start/manifest.json",
            frozen=rules.retention_items.output.frozen,
            freeze=f"{R}/freeze/retention.json",
            code=code("import_retention.py"),
        output:
            manifest=f"{R}/policies/baseline/retention/manifest.json",
            answers=f"{R}/policies/baseline/retention/answers.jsonl",
        log:
            f"{R}/policies/baseline/retention/log.txt",
        params:
            out=subpath(output.manifest, parent=True),
        localrule: True
        shell:
            "python scripts/import_retention.py --recorded {input.recorded:q} --policy {input.policy} --items {input.frozen}"
            " --freeze {input.freeze} --out {params.out} > {log} 2>&1"
