"""The study's summary: aggregates and plain words from manifests and comparisons; no raw task, output or private fact enters it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2

from agentrl.evidence import ledger
from agentrl.evidence.files import read_json
from agentrl.evidence.hashing import sha256
from agentrl.evidence.section import validate
from agentrl.judgement import release
from agentrl.judgement.comparison import BASELINE, RECORDED, RETENTION, arm_of, by_arm, measures_of
from agentrl.judgement.settings import Plan, Statistics
from agentrl.judgement.verdict import gained
from agentrl.report.figures import SMALLEST_P, points, probability
from agentrl.report.tables import pilot_tables
from agentrl.statistics import power
from agentrl.statistics.paired import COVERS
from agentrl.tasks.families import FAMILIES, read_tasks

TEMPLATES = Path(__file__).parent / "templates"
MOST = 0.9
"""A merged checkpoint that carries less of the trained update is told of."""
TRAINING_FACTS = (
    "steps",
    "episodes",
    "unique_tasks",
    "groups",
    "mixed_groups",
    "mean_reward",
    "strict_success",
)
GATE_FACTS = ("steps_with_gradient", "adapter_tensors", "adapter_tensors_changed")
"""Of what a training recorded as `gates` (`scripts/train.py`)."""
LIMITS = (
    "One synthetic task family: the result says nothing about other tools, longer episodes or real orders.",
    "Numeric ranges of the splits overlap; ids, wordings and (quantity, price) pairs do not.",
    "No interval covers other task families or start checkpoints; only those over several seeds cover training seeds.",
    "What the start policy saw in pretraining is unknown; a retention item may have been among it.",
    "Retention, MGSM included, also measures format and token limit: a right result in the wrong form counts as wrong.",
)
RECORDED_LIMIT = (
    "The start policy's retention was recorded elsewhere: checkpoint, tokenizer, items, prompt, decoding and token limit are equal by "
    "the record's own account, and its scores were recomputed from its token ids; that this checkpoint gave them was not re-run. Whether "
    "it drew from the candidates' random streams is not known."
)


def summarize(study: Path, settings: Statistics) -> dict[str, Any]:
    """Collect the aggregates of a finished study: of what its statistics consumed.

    Args:
        study: `results/{study}`.
        settings: significance level of the findings.
    """
    comparison = read_json(study / "statistics" / "comparison.json")
    verdict = read_json(study / "statistics" / "verdict.json")
    consumed = read_json(study / "statistics" / "manifest.json")["inputs"]
    evaluated = [tuple(role.rsplit("/", 1)) for role in consumed if "/" in role]
    candidates = [name for names in by_arm(evaluated).values() for name in names]
    policies = {
        name: {
            m: read_json(study / "policies" / name / m / "manifest.json")["counts"]
            for m in measures_of(evaluated, name)
        }
        for name in (BASELINE, *candidates)
    }
    selection = (
        read_json(study / "selection" / "selection.json") if "selection" in consumed else None
    )
    training = {name: trained(study / "arms" / name) for name in candidates}
    sampled = read_json(study / "plan" / "preflight.json")
    pairs = {name: comparison[arm_of(name)][name] for name in candidates}
    return {
        "study": study.name,
        "judged_on": verdict["judged_on"],
        "plan": [*read_json(study / "plan" / "power.json")["sentences"], preflight(sampled)],
        "selection": selection,
        "next": next_design(
            validate(read_json(study / "config" / "plan.json"), Plan), verdict, pairs
        ),
        "findings": [*chosen(selection), *findings(verdict, pairs, settings), *lost(training)],
        "verdict": verdict,
        "policies": policies,
        "comparisons": pairs,
        "training": training,
        "preflight": sampled,
        "checked": read_json(study / "verify" / "verify.json")["stages"],
        "release_rule": release.RULE,
        "release": {
            name: release.decide(training[name], pairs[name][RETENTION]) for name in candidates
        },
        "looks": looks(study),
        "limits": [*LIMITS, *scaffolds(study, verdict["judged_on"]), *recorded_baseline(study)],
    }


def trained(run: Path) -> dict[str, Any]:
    """What one training run did and what its merge did to the weights.

    Args:
        run: `results/{study}/arms/{arm}/seed-{seed}`.
    """
    manifest = read_json(run / "train" / "manifest.json")
    settings, arm = manifest["config"]["training"], manifest["config"]["arm"]
    return {
        **{fact: manifest[fact] for fact in TRAINING_FACTS},
        **{fact: manifest["gates"][fact] for fact in GATE_FACTS},
        "infrastructure_errors": settings["steps"] * settings["batch_size"] - manifest["episodes"],
        "reward": arm["reward"],
        "warmup": arm["warmup"],
        "merge": read_json(run / "merged" / "manifest.json")["audit"],
    }


def next_design(
    plan: Plan, verdict: Mapping[str, Any], pairs: Mapping[str, Mapping[str, Any]]
) -> list[str]:
    """What the wanted gain would take by the spread that each judged arm really showed; the plan could only assume one."""
    sentences = []
    for arm in verdict["rule"]:
        found = verdict["arms"][arm][verdict["judged_on"]]
        if found["observed_spread"] is None:
            continue
        design = power.Design(
            found["items"],
            found["trials"],
            found["seeds"],
            plan.alpha / max(1, plan.arms),
            plan.power,
        )
        mine = [pair[verdict["judged_on"]] for name, pair in pairs.items() if arm_of(name) == arm]
        discordance = sum((pair["wins"] + pair["losses"]) / pair["items"] for pair in mine) / len(
            mine
        )
        words = power.takes(
            design, plan.wanted_difference, discordance, power.Spread(**found["observed_spread"])
        )
        sentences.append(f"By the spread that {arm} showed: {words[0].lower()}{words[1:]}")
    return sentences


def chosen(selection: Mapping[str, Any] | None) -> list[str]:
    """How the arm that was judged on test was chosen; nothing where every arm was."""
    if selection is None:
        return []
    arms, best = selection["arms"], selection["chosen"]
    others = ", ".join(
        f"{arm} {100 * arms[arm]['mean']:.1f}"
        for arm in arms
        if arm != best and arm not in selection["placebos"]
    )
    many, rest = "s" * (selection["compared"] > 1), f", {others}" if others else ""
    return [
        (
            f"Chosen on dev among {selection['compared']} arm{many}: {best}, {100 * arms[best]['mean']:.1f}% strict success "
            f"(start {100 * selection['baseline']:.1f}{rest}); of the trained policies only its own saw test."
        )
    ]


def preflight(found: Mapping[str, Any]) -> str:
    """What the start policy did on training tasks before anything was trained."""
    counts, mixed = (
        found["counts"],
        ", ".join(f"{reward} {number}" for reward, number in sorted(found["mixed_groups"].items())),
    )
    return (
        f"Before training, {found['groups']} groups of {found['group_size']} on training tasks: {counts['strict_success']} of "
        f"{counts['episodes']} episodes succeeded strictly; groups whose reward varied: {mixed}."
    )


def lost(training: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Arms whose merged checkpoints lack much of what was trained, because rounding took it back (`merge.kept`)."""
    arms = by_arm((name, "") for name in training)
    shares = {
        arm: min(training[name]["merge"]["update_kept"] for name in names)
        for arm, names in arms.items()
    }
    return [
        f"{arm}: the merged checkpoint carries only {share:.0%} of the trained update, rounding took back the rest: what was evaluated is "
        "closer to the start policy than what was trained. With model.dtype float32 (and a start stored so) nothing is lost."
        for arm, share in shares.items()
        if share < MOST
    ]


def looks(study: Path) -> list[str]:
    """What the ledger says about this study's test split; nothing where the split was never made."""
    tasks = study / "tasks" / "test" / "tasks.jsonl"
    return (
        ledger.sentences(ledger.looks(study.parent / ledger.NAME, sha256(tasks)), study.name)
        if tasks.is_file()
        else []
    )


def scaffolds(study: Path, judged_on: str) -> list[str]:
    """What the prompts of the frozen tasks gave away, in their family's words.

    Args:
        study: `results/{study}`.
        judged_on: measure of the verdict, e.g. `agent-test`.
    """
    frozen = read_tasks(study / "tasks" / judged_on.removeprefix("agent-") / "tasks.jsonl")
    levels = sorted({(task.family, task.scaffold) for task in frozen})
    return [
        f"{FAMILIES[family].scaffolds[level].limit} (tasks.scaffold: {level})."
        for family, level in levels
    ]


def recorded_baseline(study: Path) -> list[str]:
    """What a retention baseline that was recorded elsewhere does not prove; nothing where the study sampled it."""
    file = study / "policies" / BASELINE / RETENTION / "manifest.json"
    if not file.is_file() or RECORDED not in read_json(file).get("inputs", {}):
        return []
    return [RECORDED_LIMIT]


def findings(
    verdict: Mapping[str, Any], pairs: Mapping[str, Mapping[str, Any]], settings: Statistics
) -> list[str]:
    """Plain sentences about every arm; none claims more than its own comparison shows.

    Args:
        verdict: `verdict.judge`.
        pairs: `{arm}/seed-{seed}` -> measure -> comparison.
        settings: level of the placebo's and of the descriptive statements.
    """
    judged, placebos = verdict["judged_on"], verdict["placebos"]
    sentences = []
    if not placebos:
        sentences.append(
            "No arm with random reward was run, so a gain cannot be told from mere training: no verdict."
        )
    for arm in placebos:
        found = verdict["arms"][arm][placebos[arm]]
        what = "gained although its reward was random: no verdict on any arm"
        quiet = "shows no gain beyond chance, as it must"
        sentences.append(
            f"Placebo {arm} {what if gained(found, settings.alpha) else quiet} ({_change(found)})."
        )
    for arm, outcome in verdict["rule"].items():
        sentences.append(_verdict(arm, verdict["arms"][arm][judged], outcome, settings.alpha))
    for arm, measures in verdict["arms"].items():
        if RETENTION in measures:
            candidates = {
                name: pair[RETENTION] for name, pair in pairs.items() if arm_of(name) == arm
            }
            sentences += [_retention(arm, candidates), _bound(arm, measures[RETENTION])]
    return sentences


def _verdict(arm: str, found: Mapping[str, Any], outcome: Mapping[str, Any], alpha: float) -> str:
    """The rule's outcome, or what it lacks behind what the items (one seed) or items and seeds (several) show."""
    if outcome["improved"]:
        return f"{arm}: agent success improved by the rule set beforehand ({_change(found)})."
    several = found["seeds"] > 1
    p = found["two_way"]["p"] if several else found["item_p"]
    beyond = (
        "beyond chance of the items and seeds"
        if several
        else "beyond chance of the items, for this one training run"
    )
    change = f"did not change by more than these items{' and seeds' if several else ''} can tell from chance"
    if gained(found, alpha):
        change = f"rose {beyond}"
    elif found["difference"] < 0 and (p is None or p < alpha):
        change = f"fell {beyond}"
    return f"{arm}: agent success {change} ({_change(found)}). Not called improved: {'; '.join(outcome['missing'])}."


def _change(found: Mapping[str, Any]) -> str:
    """Counts of a change in points and its p value: over items and seeds, or over items with one seed."""
    over = f"{points(found['difference'])} points over {found['items']} items and {found['seeds']} seed{'s' * (found['seeds'] > 1)}"
    if found["seeds"] == 1:
        return f"{over}, p over items {_p(found['item_p'])}"
    p = "no p" if found["two_way"]["p"] is None else f"p {_p(found['two_way']['p'])}"
    return (
        over + f", {p}" + ("" if found["holm_p"] is None else f", over arms {_p(found['holm_p'])}")
    )


def _p(value: float) -> str:
    return f"{'= ' * (value >= SMALLEST_P)}{probability(value)}"


def _retention(arm: str, candidates: Mapping[str, Mapping[str, Any]]) -> str:
    """The zero-drop gate of every seed; each regression with its counts."""
    fell = {name: pair for name, pair in candidates.items() if not pair["zero_drop_gate"]["passed"]}
    shown = fell or dict(list(candidates.items())[:1] if len(candidates) == 1 else [])
    counts = "; ".join(f"{name.split('/')[1]}: {_kept(pair)}" for name, pair in shown.items())
    seeds = (
        f" with {len(fell) or len(candidates)} of {len(candidates)} seeds"
        if len(candidates) > 1
        else ""
    )
    return f"{arm}: retention {'REGRESSED' if fell else 'held'} under the zero-drop gate{seeds}{f' ({counts})' if counts else ''}."


def _kept(pair: Mapping[str, Any]) -> str:
    alarm = pair["zero_drop_gate"]["false_alarm_rate"]
    chance = (
        ""
        if alarm is None
        else f", an equally accurate model fails this gate {alarm:.0%} of the time"
    )
    before, after = (round(pair[policy] * pair["items"]) for policy in ("baseline", "candidate"))
    return f"{before} -> {after} of {pair['items']}, {points(pair['difference'])} points{chance}"


def _bound(arm: str, found: Mapping[str, Any]) -> str:
    """The non-inferiority bound, and the same without the contradicted items."""
    bound, without = found["non_inferiority"], found["without_contradicted"]
    items = (
        "more than any benchmark has"
        if bound["items_needed"] is None
        else f"{bound['items_needed']}"
    )
    sentence = (
        f"{arm}: a retention loss of {100 * bound['margin']:.1f} points is {'ruled out' if bound['passed'] else 'NOT ruled out'} "
        f"(lower bound {points(bound['lower'])} points, {found['items']} items; an equally good model needs {items} to pass with 80% power)"
    )
    if without is None:
        return f"{sentence}."
    rest = without["non_inferiority"]
    gates = sum(not gate["passed"] for gate in without["zero_drop_gates"].values())
    return (
        f"{sentence}; without {without['left_out']} of them whose German contradicts the gold answer: "
        f"{points(without['difference'])} points, lower bound {points(rest['lower'])}, "
        f"{'ruled out' if rest['passed'] else 'NOT ruled out'}, zero-drop gate failed by {gates} of {found['seeds']}."
    )


def render(summary: Mapping[str, Any]) -> str:
    """The summary as Markdown."""
    environment = jinja2.Environment(  # noqa: S701 - Markdown of numbers and names, not HTML
        loader=jinja2.FileSystemLoader(TEMPLATES),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"points": points, "probability": probability}
    on = summary["judged_on"]
    judged = [measures[on] for measures in summary["verdict"]["arms"].values() if on in measures]
    kept = [measures[RETENTION] for measures in summary["verdict"]["arms"].values()]
    covers = [("Interval", found["two_way"]["note"]) for found in judged]
    covers += [("Bootstrap", found["crossed_bootstrap"]["note"]) for found in judged]
    covers += [("Retention bound", found["non_inferiority"]["note"]) for found in kept]
    return environment.get_template("summary.md.j2").render(
        **summary,
        tables=pilot_tables(summary),
        notes=[
            *(f"{what}: {note}" for what, note in dict.fromkeys(covers)),
            f"Streams: {COVERS['streams']}",
        ],
        several=any(found["seeds"] > 1 for found in judged),
        trials=max(found["trials"] for found in judged),
    )
