"""Whether a candidate may be released: every gate of its own passed, and what blocks it where one did not.

Eligibility is about the checkpoint, not about a gain: a candidate can be eligible without having improved, and the pilot's was not
although its agent success had risen, because its zero-drop retention gate failed.
"""

from collections.abc import Iterator, Mapping
from typing import Any

RULE = (
    "Release eligible: every gate passed, that is training health, the merge audit and zero-drop retention. "
    "An arm with random reward is a control and never eligible."
)


def decide(training: Mapping[str, Any], retention: Mapping[str, Any]) -> dict[str, Any]:
    """One candidate's `eligible`, and `blocked_by`: a phrase for each gate that did not pass, in the order of the pipeline.

    Args:
        training: facts of its training and, as `merge`, of its merge audit (`report.trained`).
        retention: its paired comparison on retention (`comparison.compare`).
    """
    blocked = [
        *_control(training),
        *_health(training),
        *_merge(training["merge"]),
        *_kept(retention),
    ]
    return {"eligible": not blocked, "blocked_by": blocked}


def _control(training: Mapping[str, Any]) -> Iterator[str]:
    if training["reward"] == "random":
        yield "control: its reward is random"


def _health(training: Mapping[str, Any]) -> Iterator[str]:
    if training["infrastructure_errors"] != 0:
        yield f"training health: {training['infrastructure_errors']} episodes are missing"
    if training["mixed_groups"] == 0:
        yield "training health: no group had reward variation"
    if training["steps_with_gradient"] == 0:
        yield "training health: no step had a gradient"
    if (still := training["adapter_tensors"] - training["adapter_tensors_changed"]) > 0:
        yield f"training health: {still} of {training['adapter_tensors']} adapter tensors did not change"


def _merge(audit: Mapping[str, Any]) -> Iterator[str]:
    if audit["changed"] != audit["targets"]:
        yield f"merge audit: {audit['changed']} tensors changed, {audit['targets']} are targets"
    if not audit["largest_logit_difference"] <= audit["tolerance"]:  # NaN compares false
        yield f"merge audit: logits differ by {audit['largest_logit_difference']}, tolerated {audit['tolerance']}"


def _kept(retention: Mapping[str, Any]) -> Iterator[str]:
    if not retention["zero_drop_gate"]["passed"]:
        yield f"zero-drop retention gate failed ({retention['wins']} won, {retention['losses']} lost)"
