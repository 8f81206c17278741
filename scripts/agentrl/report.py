"""The study's summary: aggregates and plain words from manifests and comparisons; no raw task, output or private fact enters it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2

from agentrl import ledger
from agentrl.comparison import RECORDED, RETENTION
from agentrl.config import Statistics
from agentrl.hashing import sha256
from agentrl.manifest import read_json

TEMPLATES = Path(__file__).parent / "templates"
BASELINE = "baseline"
SMALLEST_P = 0.0001
"""A smaller p is printed as below this."""
TRAINING_FACTS = ("steps", "episodes", "unique_tasks", "groups", "mixed_groups", "mean_reward", "strict_success")
LIMITS = (
    "One synthetic task family: the result says nothing about other tools, longer episodes or real orders.",
    "The first action is scaffolded: the prompt shows the exact lookup call, so success begins at the second turn.",
    "Numeric ranges of the splits overlap; ids, wordings and (quantity, price) pairs do not.",
    "Intervals cover the choice of items only, not training seeds, sampling trials or other task families.",
    "What the start policy saw in pretraining is unknown; a retention item may have been among it.",
    "Retention, MGSM included, also measures format and token limit: a right result in the wrong form counts as wrong.",
)
RECORDED_LIMIT = (
    "The start policy's retention was recorded elsewhere: checkpoint, tokenizer, items, prompt, decoding and token limit are equal by "
    "the record's own account, and its scores were recomputed from its token ids; that this checkpoint gave them was not re-run."
)


def summarize(study: Path, candidates: Sequence[str], measures: Sequence[str], settings: Statistics) -> dict[str, Any]:
    """Collect the aggregates of a finished study.

    Args:
        study: `results/{study}`.
        candidates: `{arm}/seed-{seed}` of every trained policy.
        measures: evaluated measures, e.g. `agent-dev`, `agent-test`, `retention`.
        settings: significance level of the findings.
    """
    comparison = read_json(study / "statistics" / "comparison.json")
    policies = {
        name: {m: read_json(study / "policies" / name / m / "manifest.json")["counts"] for m in measures}
        for name in (BASELINE, *candidates)
    }
    training, placebos = {}, []
    for name in candidates:
        manifest = read_json(study / "arms" / name / "train" / "manifest.json")
        audit = read_json(study / "arms" / name / "merged" / "manifest.json")["audit"]
        training[name] = {fact: manifest[fact] for fact in TRAINING_FACTS} | {"reward": manifest["config"]["arm"]["reward"], "merge": audit}
        if manifest["config"]["arm"]["reward"] == "random":
            placebos.append(name)
    pairs = {name: comparison[name.split("/")[0]][name] for name in candidates}
    judged = max(m for m in measures if m.startswith("agent-"))  # agent-test where it was evaluated, else agent-dev
    return {
        "study": study.name,
        "judged_on": judged,
        "findings": findings(pairs, placebos, judged, settings.alpha),
        "policies": policies,
        "comparisons": pairs,
        "training": training,
        "looks": looks(study),
        "limits": [*LIMITS, *recorded_baseline(study)],
    }


def looks(study: Path) -> list[str]:
    """What the ledger says about this study's test split; nothing where the split was never made."""
    tasks = study / "tasks" / "test" / "tasks.jsonl"
    return ledger.sentences(ledger.looks(study.parent / ledger.NAME, sha256(tasks)), study.name) if tasks.is_file() else []


def recorded_baseline(study: Path) -> list[str]:
    """What a retention baseline that was recorded elsewhere does not prove; nothing where the study sampled it."""
    file = study / "policies" / BASELINE / RETENTION / "manifest.json"
    if not file.is_file() or RECORDED not in read_json(file).get("inputs", {}):
        return []
    return [RECORDED_LIMIT]


def findings(pairs: Mapping[str, Mapping[str, Any]], placebos: Sequence[str], judged: str, alpha: float) -> list[str]:
    """Plain sentences about every candidate; none claims more than its own comparison shows."""
    caveat = "for this one training run"
    if any(_gained(pairs[name][judged], alpha) for name in placebos):
        caveat = "but the placebo forbids a verdict"
    sentences = []
    if not placebos:
        caveat = "but without a placebo there is no verdict"
        sentences.append("No arm with random reward was run, so a gain cannot be told from mere training: no verdict.")
    sentences += [f"Placebo {name} {_placebo(pairs[name][judged], alpha)} ({_change(pairs[name][judged])})." for name in placebos]
    for name in pairs:
        if name not in placebos:
            verdict = _verdict(pairs[name][judged], caveat, alpha)
            sentences.append(f"{name}: agent success {verdict} ({_change(pairs[name][judged])}).")
    sentences += [_retention(name, pair["retention"]) for name, pair in pairs.items() if "retention" in pair]
    return sentences


def _gained(pair: Mapping[str, Any], alpha: float) -> bool:
    return pair["difference"] > 0 and pair["mcnemar_p"] is not None and pair["mcnemar_p"] < alpha


def _placebo(pair: Mapping[str, Any], alpha: float) -> str:
    if pair["mcnemar_p"] is None:
        return "has no test yet for several trials per item; see the interval"
    if _gained(pair, alpha):
        return "gained although its reward was random: no verdict on any arm"
    return "shows no gain beyond chance, as it must"


def _verdict(pair: Mapping[str, Any], caveat: str, alpha: float) -> str:
    if pair["mcnemar_p"] is None:
        return "has no test yet for several trials per item; see the interval"
    if _gained(pair, alpha):
        return f"rose beyond chance of the items, {caveat}"
    if pair["difference"] < 0 and pair["mcnemar_p"] < alpha:
        return "fell beyond chance of the items"
    return "did not change by more than these items can tell from chance"


def _change(pair: Mapping[str, Any]) -> str:
    p = "" if pair["mcnemar_p"] is None else f", McNemar p {'= ' * (pair['mcnemar_p'] >= SMALLEST_P)}{probability(pair['mcnemar_p'])}"
    return f"{points(pair['difference'])} points, {pair['wins']} wins, {pair['losses']} losses of {pair['items']}{p}"


def _retention(name: str, pair: Mapping[str, Any]) -> str:
    gate = pair["zero_drop_gate"]
    what = "held" if gate["passed"] else "REGRESSED"
    alarm = gate["false_alarm_rate"]
    chance = "" if alarm is None else f"; an equally accurate model fails this gate {alarm:.0%} of the time"
    counts = f"{round(pair['baseline'] * pair['items'])} -> {round(pair['candidate'] * pair['items'])} of {pair['items']}"
    return f"{name}: retention {what} under the zero-drop gate ({counts}, {points(pair['difference'])} points{chance})."


def points(fraction: float) -> str:
    """A fraction as signed percentage points."""
    return f"{100 * fraction:+.1f}"


def probability(value: float) -> str:
    """A p value with three significant digits."""
    return f"{value:.3g}" if value >= SMALLEST_P else f"< {SMALLEST_P}"


def render(summary: Mapping[str, Any]) -> str:
    """The summary as Markdown."""
    environment = jinja2.Environment(  # noqa: S701 - Markdown of numbers and names, not HTML
        loader=jinja2.FileSystemLoader(TEMPLATES), undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"points": points, "probability": probability}
    return environment.get_template("summary.md.j2").render(summary)
