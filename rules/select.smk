# Dev for choosing, test for judging. A checkpoint: which policies see test is known only when the choice is made.
#
# It waits for every gate before training. Once it has run, Snakemake asks anew what must run, overlooks whatever lies behind a gate that is
# still running (`code.smk` says how), and no longer counts the jobs that have just finished: old statistics would pass for new ones.
CHOICE = [f"{R}/selection/{name}.json" for name in ("manifest", "selection")] if STUDY.evaluation.select else []


if STUDY.evaluation.select:

    checkpoint select:
        input:
            evaluations=manifests(["baseline", *CANDIDATES], ["agent-dev"]),
            design=f"{R}/config/design.json",
            gates=ancient([*rules.plan.output, *expand(rules.admit.output, arm=STUDY.arms), *rules.gpu_preflight.output]),  # see above
            code=code("select_arm.py"),
        output:
            manifest=f"{R}/selection/manifest.json",
            selection=f"{R}/selection/selection.json",
        log:
            f"{R}/selection/log.txt",
        params:
            placebos=PLACEBOS,
            out=subpath(output.manifest, parent=True),
        localrule: True
        shell:
            "python scripts/select_arm.py --evaluations {input.evaluations} --placebos {params.placebos} --out {params.out} > {log} 2>&1"


def selection(wildcards):
    """Manifest of the choice, where there is one."""
    return checkpoints.select.get().output.manifest if STUDY.evaluation.select else []


def evaluations(wildcards):
    """Everything the statistics rest on: test of every candidate, or of the chosen arm's only."""
    found = manifests(["baseline", *CANDIDATES], BEFORE_CHOICE)
    if STUDY.evaluation.select:
        chosen = json.loads(Path(checkpoints.select.get().output.selection).read_text(encoding="utf-8"))["chosen"]
        found += manifests(["baseline", *(name for name in CANDIDATES if name.startswith(f"{chosen}/"))], ["agent-test"])
    return found
