"""Rules of success: each key both ways on known courses, and two judgements written apart that agree on any log under any rules."""

from collections import Counter
from dataclasses import replace
from itertools import product
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from raw_studies import PILOT_RAW, put, refusal

from agentrl.rollout.settings import Protocol
from agentrl.study.config import validate_study
from agentrl.tasks.calculator import ExpressionError, calculate
from agentrl.tasks.environment import Call, Outcome, judge
from agentrl.tasks.families import generate
from agentrl.tasks.settings import Success
from agentrl.verify.replay import Replay, _outcome

RULES = tuple(Success.model_fields)
PROTOCOL = validate_study(PILOT_RAW).protocol
TASK = replace(
    generate(validate_study(PILOT_RAW).tasks, "dev", 1)[0],
    facts={"menge": 7, "einzelpreis": 59},
    answer=413,
)


def rules(**changed: str) -> Success:
    """The shipped rules with some changed."""
    return PROTOCOL.success.model_copy(update=changed)


def lookup(turn: int, **changes: Any) -> Call:
    return replace(
        Call(
            turn, "lookup", {"record_id": TASK.record_id}, observation="", error=None, retained=True
        ),
        **changes,
    )


def calculator(turn: int, expression: str = "7 * 59", **changes: Any) -> Call:
    return lookup(turn, name="calculator", arguments={"expression": expression}, **changes)


def failed(turn: int, error: str = "invalid_json", **changes: Any) -> Call:
    return lookup(turn, name=None, arguments=None, error=error, **changes)


def judged(
    calls: list[Call],
    of: Success,
    invented: bool = False,
    answer: int | None = 413,
    end: str = "answer",
) -> Outcome:
    return judge(calls, TASK.facts, TASK.answer, answer, end, invented, of)


def replayed(
    calls: list[Call],
    of: Success,
    invented: bool = False,
    answer: int | None = 413,
    end: str = "answer",
) -> dict[str, Any]:
    """What verify makes of the same log."""
    walk = SimpleNamespace(
        found=Replay(calls=[vars(call) for call in calls]),
        invented=invented,
        answer=answer,
        end=end,
    )
    return _outcome(walk, TASK, PROTOCOL.model_copy(update={"success": of}))


def test_the_shipped_rules_are_the_recipe_s() -> None:
    """Milestones once, repeats earn no more credit (and take none), the next turn must calculate, one call a turn, nothing invented."""
    assert rules().model_dump() == {
        "late_calculation": "breaks", "repeated_lookup": "allowed", "extra_calculation": "allowed", "failed_call": "allowed",
        "second_call": "breaks", "invented_text": "breaks",
    }  # fmt: skip


DEPARTURES: dict[str, tuple[list[Call], bool, set[str]]] = {
    "straight": ([lookup(0), calculator(1)], False, set()),
    "failure first": ([lookup(0, error="wrong_id"), lookup(1), calculator(2)], False, set()),
    "failure last": ([lookup(0), calculator(1), failed(2)], False, set()),
    "last observation did not fit": ([lookup(0), calculator(1), calculator(2, "1 + 1", retained=False)], False, set()),
    "another calculation between": ([lookup(0), calculator(1, "1 + 1"), calculator(2)], False, {"late_calculation"}),
    "the bare result between": ([lookup(0), calculator(1, "413"), calculator(2)], False, {"late_calculation"}),
    "the lookup again between": ([lookup(0), lookup(1), calculator(2)], False, {"late_calculation", "repeated_lookup"}),
    "the lookup again behind": ([lookup(0), calculator(1), lookup(2)], False, {"repeated_lookup"}),
    "the product again behind": ([lookup(0), calculator(1), calculator(2)], False, {"extra_calculation"}),
    "another calculation behind": ([lookup(0), calculator(1), calculator(2, "413 - 1")], False, {"extra_calculation"}),
    "a calculation first": ([calculator(0, "1 + 1"), lookup(1), calculator(2)], False, {"extra_calculation"}),
    "the product first and again": ([calculator(0), lookup(1), calculator(2)], False, {"extra_calculation"}),
    "failure between": ([lookup(0), failed(1), calculator(2)], False, {"failed_call"}),
    "refused between": ([lookup(0), calculator(1, "7 x 59", error="refused_expression"), calculator(2)], False, {"failed_call"}),
    "two calls in the first turn": ([lookup(0), failed(0, "second_call"), calculator(1)], False, {"second_call"}),
    "two calls in the last turn": ([lookup(0), calculator(1), failed(1, "second_call")], False, {"second_call"}),
    "invented": ([lookup(0), calculator(1)], True, {"invented_text"}),
    "everything": (
        [calculator(0), lookup(1), failed(1, "second_call"), failed(2), lookup(3), calculator(4), calculator(5)], True, set(RULES),
    ),
}  # fmt: skip
"""Calls, whether text was invented, and the rules that this departs from: success breaks where one of them does."""


@pytest.mark.parametrize("name", DEPARTURES)
def test_each_key_both_ways(name: str) -> None:
    """Under every combination of the six keys: success breaks exactly where a rule that is departed from breaks."""
    calls, invented, departed = DEPARTURES[name]
    for effects in product(("breaks", "allowed"), repeat=len(RULES)):
        of = Success(**dict(zip(RULES, effects, strict=True)))
        wanted = not any(getattr(of, rule) == "breaks" for rule in departed)
        for found in (vars(judged(calls, of, invented)), replayed(calls, of, invented)):
            assert (found["lookup"], found["calculation"]) == (True, True)
            assert (found["workflow"], found["strict"]) == (wanted, wanted), of


ALLOWED = Success(**dict.fromkeys(RULES, "allowed"))


@pytest.mark.parametrize(
    ("calls", "answer"),
    [
        ([], 413),
        ([lookup(0)], 413),
        ([calculator(0)], 413),
        ([calculator(0), lookup(1)], 413),
        ([lookup(0), calculator(0)], 413),
        ([lookup(0), calculator(1, "413")], 413),
        ([lookup(0), calculator(1, "7 + 59")], 413),
        ([lookup(0), calculator(1, "7.0 * 59")], 413),
        ([lookup(0), calculator(1, "7 * 59 * 1")], 413),
        ([lookup(0, retained=False), calculator(1)], 413),
        ([lookup(0), calculator(1, retained=False)], 413),
        ([lookup(0, error="wrong_id"), calculator(1)], 413),
        ([lookup(0), calculator(1)], 412),
        ([lookup(0), calculator(1)], None),
    ],
)
def test_no_key_does_away_with_the_core(calls: list[Call], answer: int | None) -> None:
    """Lookup, in a later turn the product of its two values, and the right answer."""
    assert not judged(calls, ALLOWED, answer=answer).strict
    assert not replayed(calls, ALLOWED, answer=answer)["strict"]


EXPRESSIONS = (
    "7 * 59",
    "59*7",
    "(7) * (59)",
    "7.0 * 59",
    "7 * 59 * 1",
    "7 + 59",
    "413",
    "+7 * 59",
    "1 + 1",
)
ERRORS = ("invalid_json", "wrong_keys", "unknown_tool", "wrong_id", "refused_expression")


def random_log(rng: Random) -> list[Call]:
    """Calls as an environment could log them: the first of a turn succeeds or fails, the others are second calls."""
    log: list[Call] = []
    for turn in range(rng.randint(0, 6)):
        course = rng.choice(("lookup", "calculator", "calculator", "failed", "silent"))
        kept = rng.random() < 0.95
        if course == "lookup":
            log.append(lookup(turn, retained=kept))
        elif course == "calculator":
            log.append(calculator(turn, rng.choice(EXPRESSIONS), retained=kept))
        elif course == "failed":
            log.append(
                rng.choice((failed, lookup, calculator))(
                    turn, error=rng.choice(ERRORS), retained=kept
                )
            )
        if course != "silent" and rng.random() < 0.1:
            log.append(
                rng.choice((failed, lookup, calculator))(turn, error="second_call", retained=kept)
            )
    return log


def test_the_loop_s_judgement_and_verify_s_agree_on_random_logs() -> None:
    """30,000 random logs under random rules; enough of them succeed, and each rule decides in some."""
    rng, seen = Random("judge against replay"), Counter[str]()
    for _ in range(30_000):
        calls, of = (
            random_log(rng),
            Success(**{rule: rng.choice(("breaks", "allowed")) for rule in RULES}),
        )
        facts = (
            rng.random() < 0.2,
            rng.choice((413, 413, 413, 412, None)),
            rng.choice(("answer", "malformed", "turn_cap")),
        )
        mine = judged(calls, of, *facts)
        assert vars(mine) == replayed(calls, of, *facts), (calls, of, facts)
        seen["strict"] += mine.strict
        if mine.calculation and not mine.workflow:
            for rule in RULES:
                decides = judged(calls, of.model_copy(update={rule: "allowed"}), *facts).workflow
                seen[rule] += decides
                assert decides <= (getattr(of, rule) == "breaks")
    assert seen["strict"] > 300
    assert all(seen[rule] > 50 for rule in RULES), seen


@given(st.sampled_from(EXPRESSIONS), st.text("0123456789.+-*() ", max_size=12))
def test_both_judgements_read_the_same_products(spelled: str, other: str) -> None:
    for expression in (spelled, other, f"{other}{spelled}", f"{spelled}{other}"):
        try:
            calculate(expression)
        except ExpressionError:
            continue
        calls = [lookup(0), calculator(1, expression)]
        assert vars(judged(calls, rules())) == replayed(calls, rules()), expression


def test_the_old_key_and_other_effects_are_refused() -> None:
    message = refusal(put(PILOT_RAW, "protocol.failed_call_breaks_success", False))
    assert "protocol.failed_call_breaks_success: unknown key (found false)" in message
    message = refusal(put(PILOT_RAW, "protocol.success.failed_call", False))
    assert "protocol.success.failed_call" in message
    assert "'breaks' or 'allowed'" in message
    without = {
        rule: effect
        for rule, effect in PILOT_RAW["protocol"]["success"].items()
        if rule != "second_call"
    }
    assert "protocol.success.second_call: missing" in refusal(
        put(PILOT_RAW, "protocol.success", without)
    )
    assert set(Protocol.model_fields) == {"budget", "max_tool_iterations", "success"}


def test_every_rule_is_judged() -> None:
    """A key that no judgement reads would be a promise without effect."""
    everything, invented, _ = DEPARTURES["everything"]
    for rule in RULES:
        only = ALLOWED.model_copy(update={rule: "breaks"})
        assert not judged(everything, only, invented).workflow
        assert not replayed(everything, only, invented)["workflow"]
