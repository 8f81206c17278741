"""Section files: what one job may depend on, so that an edit of the configuration reruns no more than it must.

Jobs never see YAML: they read one canonical JSON file per section, so a config edited while a job waits in a queue cannot change that job
behind the record.
"""

import json
from pathlib import Path
from typing import Any

from agentrl.evaluation.settings import EvaluationShape, Retention, RetentionPrompt
from agentrl.evidence.section import ConfigError
from agentrl.study.config import Study
from agentrl.tasks.settings import BaseTasks
from agentrl.training.settings import TrainingSettings


def canonical(data: Any) -> str:
    """JSON with sorted keys and no spaces: equal data, equal bytes."""
    return json.dumps(
        data, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )


def sections(study: Study) -> dict[str, dict[str, Any]]:
    """Section name -> plain data: what one job may depend on, so that an edit reruns no more than it must.

    `tasks-{split}` knows only its own split's size, `training` no seeds and `evaluation` no splits (they are wildcards), `retention` not
    where its ids come from (a file is a rule's input), `arm-{arm}` one arm. `plan` knows the design, so it alone changes with it.
    """
    whole = study.model_dump(mode="json")
    names = ("model", "protocol", "decoding", "reward", "statistics")
    out: dict[str, dict[str, Any]] = {name: whole[name] for name in names}
    out["training"] = TrainingSettings.part(whole["training"])
    out["evaluation"] = EvaluationShape.part(whole["evaluation"])
    out["retention"] = Retention.part(whole["retention"])
    base = BaseTasks.part(whole["tasks"])
    for split, count in whole["tasks"]["splits"].items():
        out[f"tasks-{split}"] = {**base, "seed": whole["tasks"]["seed"], "count": count}
    largest = max(arm.settings(study.training).group_size for arm in study.arms.values())
    out["preflight"] = {**whole["preflight"], "group_size": largest}
    for name, arm in study.arms.items():
        out[f"arm-{name}"] = arm.content()
    out["plan"] = {
        **whole["plan"],
        "items": whole["tasks"]["splits"][study.judged_split],
        "trials": study.evaluation.trials,
        "seeds": len(study.training.seeds),
        "arms": len(study.compared) if study.evaluation.select is None else 1,
        "retention_items": study.retention.items,
        "alpha": study.statistics.alpha,
    }
    if study.demo_policy is not None:
        recipe = whole["demo_policy"]
        prompt = RetentionPrompt.part(whole["retention"])
        job = {
            "threads": recipe["threads"],
            "tasks": base,
            "protocol": whole["protocol"],
            "retention": prompt,
        }
        out["demo-base"] = {
            **job,
            "stage": recipe["base"],
            "architecture": recipe["architecture"],
            "drill": recipe["drill"],
        }
        out["demo-sft"] = {**job, "stage": recipe["sft"], "lora": recipe["sft_lora"]}
    return out


def check_taken_over(study: Study) -> None:
    """Refuse a baseline or id file that is not there. Snakemake would not where its output exists already, whatever made that."""
    wanted = [
        ("retention.ids_from", study.retention.ids_from),
        ("baselines.retention", study.baselines.recorded_file),
    ]
    measures = {
        "agent": [f"agent-{split}" for split in study.evaluation.splits],
        "retention": ["retention"],
    }
    for kind, folder in study.baselines.earlier.items():
        wanted += [
            (f"baselines.{kind}", f"{folder}/policies/baseline/{measure}/manifest.json")
            for measure in measures[kind]
        ]
    for key, path in wanted:
        if path is not None and not Path(path).is_file():
            raise ConfigError(
                f"{key}: no file {path}; give a path that exists, as seen from the folder of the Snakefile, or null"
            )
