# What every rule file uses: the validated study, its section files, code digests, wildcard constraints.
import json
import os
import sys
from pathlib import Path

from snakemake.exceptions import WorkflowError
from snakemake.logging import logger

sys.path.insert(0, str(Path(workflow.basedir) / "scripts"))
from agentrl.evidence.section import ConfigError, merge
from agentrl.study import config as study_config, plan_view, refusals, sections as study_sections, strictyaml
from agentrl.evidence.sources import code_params


# Rules say `python`: the interpreter Snakemake itself runs under. As a prefix it is no part of a rule, so moving .venv reruns nothing.
shell.prefix(f"set -euo pipefail; export PATH={Path(sys.executable).parent}:$PATH; ")


def validated():
    """config.yaml, below the --configfile of a profile or command line, below --config; read strictly, refused as a message."""
    settings = workflow.config_settings
    try:
        raw = strictyaml.read_yaml(Path(workflow.basedir) / "config.yaml", *settings.configfiles)
        study = study_config.validate_study(merge(raw, strictyaml.retype(settings.config or {})))
        study_sections.check_taken_over(study)
        refusals.check_start(study, Path("results", study.study, "start"))
        return study
    except ConfigError as error:
        raise WorkflowError(str(error)) from None


STUDY = validated()
SECTIONS = study_sections.sections(STUDY)
R = f"results/{STUDY.study}"
if os.environ.get(plan_view.SWITCH) != "all":
    logger.addFilter(plan_view.PlanView(R, workflow))
# Sorted: which arms, seeds and splits there are is a set, and the order in which somebody wrote them down reruns nothing.
CANDIDATES = [f"{arm}/seed-{seed}" for arm in sorted(STUDY.arms) for seed in sorted(STUDY.training.seeds)]
MEASURES = [*(f"agent-{split}" for split in sorted(STUDY.evaluation.splits)), "retention"]
PLACEBOS = sorted(STUDY.placebos)
WARMED = sorted(arm for arm, section in STUDY.arms.items() if section.warmup)
BEFORE_CHOICE = [m for m in MEASURES if m != "agent-test"] if STUDY.evaluation.select else MEASURES
SEEN = {m: len(CANDIDATES) if m in BEFORE_CHOICE else len(STUDY.training.seeds) for m in MEASURES}
JOBS = [f"train={len(CANDIDATES)}", *(f"{measure}={1 + times}" for measure, times in SEEN.items())]
SECTIONS["design"] = {"candidates": CANDIDATES, "measures": MEASURES, "placebos": PLACEBOS, "select": STUDY.evaluation.select}


def section_content(wildcards):
    return study_sections.canonical(SECTIONS[wildcards.section])


def section(*names):
    """Paths of section files, the only configuration a job ever reads."""
    return [f"{R}/config/{name}.json" for name in names]


def code(command):
    """Path of the file that says which code a command is (`code.smk`)."""
    return f"{R}/code/{Path(command).stem}.txt"


# Built from the configuration: an unconfigured arm or seed is refused, not planned.
wildcard_constraints:
    section="|".join(SECTIONS),
    split="|".join(study_config.SPLITS),
    arm="|".join(STUDY.arms),
    seed="|".join(str(seed) for seed in STUDY.training.seeds),
    policy="|".join(["baseline", *CANDIDATES]),
    stage="train|retention|agent-dev|agent-test",


rule section:
    input:
        code=code("write_section.py"),
    output:
        f"{R}/config/{{section}}.json",
    params:
        content=section_content,
    localrule: True
    shell:
        "python scripts/write_section.py --content {params.content:q} --out {output}"
