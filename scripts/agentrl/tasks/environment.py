"""One episode's private state: the record behind `lookup`, the calculator, and the log that proves what really happened.

`Environment` keeps the contract of TRL's `environment_factory` (`reset(**row)`, typed and documented tool methods, nothing else
public), so it also runs under plain TRL. Its tools never raise: a refused call returns a German error text and is logged as an
error. What the log is worth as success is decided in `judge`, from calls whose observation stands in the retained stream.
"""

import inspect
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from agentrl.tasks.calculator import ExpressionError, calculate, factors
from agentrl.tasks.settings import Success

ErrorKind = Literal[
    "unclosed_call",
    "invalid_json",
    "repeated_key",
    "unrecordable",
    "not_an_object",
    "wrong_keys",
    "name_not_a_string",
    "arguments_not_an_object",
    "nested_arguments",
    "unknown_tool",
    "wrong_arguments",
    "wrong_argument_type",
    "wrong_id",
    "refused_expression",
    "second_call",
]
"""Mistakes of a call in the order in which they are looked for, a second call in one turn aside. Each costs the same reward."""
EndKind = Literal["answer", "malformed", "turn_cap", "token_cap", "observation_cap"]
TOOLS = ("calculator", "lookup")
"""Alphabetical, as TRL collects the methods of an environment: the rendered tool list must not depend on the caller."""
REASONS: dict[ErrorKind, str] = {
    "unclosed_call": "Aufruf ist nicht abgeschlossen",
    "invalid_json": "Aufruf ist kein gültiges JSON",
    "repeated_key": "Aufruf nennt einen Schlüssel mehrmals",
    "unrecordable": "Aufruf enthält eine unmögliche Zahl, ein ungültiges Zeichen oder zu viele Ebenen",
    "not_an_object": "Aufruf ist kein JSON-Objekt",
    "name_not_a_string": "name muss ein Text sein",
    "arguments_not_an_object": "arguments muss ein JSON-Objekt sein",
    "nested_arguments": "arguments darf keine Listen oder Objekte enthalten",
    "unknown_tool": "unbekanntes Werkzeug",
    "second_call": "nur ein Aufruf pro Zug",
}
"""German observation of each kind whose text is always the same. No observation repeats what the policy wrote."""


@dataclass(frozen=True)
class Request:
    """One tool call as the policy wrote it. `error` is set where the text itself is already a tool error."""

    name: str | None = None
    arguments: dict[str, Any] | None = None
    error: ErrorKind | None = None
    reason: str = ""
    """German text of the error where the kind alone does not say enough; made of our own words only."""


@dataclass(frozen=True)
class Call:
    """One tool call and what came of it."""

    turn: int
    """Index of the assistant turn that made it, from 0."""
    name: str | None
    """Tool as called; None where the call could not be parsed."""
    arguments: dict[str, Any] | None
    observation: str
    """Text the environment answered."""
    error: ErrorKind | None
    retained: bool
    """Whether the observation stands in the stream; a call whose observation no longer fitted counts for nothing."""


@dataclass(frozen=True)
class Outcome:
    """What one episode achieved. Success never looks at the reward, the reward never defines success."""

    lookup: bool
    """Milestone: the record was looked up and its observation retained."""
    calculation: bool
    """Milestone: in a later turn the calculator got exactly the product of the retrieved values."""
    workflow: bool
    """Both milestones, and none of the departures that `protocol.success` says break it."""
    answer: int | None
    """Accepted answer of the last turn; None where it is malformed or missing."""
    answer_correct: bool
    strict: bool
    """`workflow` and `answer_correct`: the study's success."""
    tool_errors: int
    end: EndKind


class Environment:
    """State of one episode; one instance serves one episode at a time."""

    def __init__(self) -> None:
        self._record_id: str | None = None
        self._facts: dict[str, int] = {}
        self._errors: list[ErrorKind | None] = []

    def reset(self, **row: Any) -> None:
        """Start an episode.

        Args:
            row: a task record; `record_id` and `facts` are read, the rest is ignored.
        """
        facts = row["facts"]
        self._record_id = row["record_id"]
        self._facts = dict(json.loads(facts) if isinstance(facts, str) else facts)
        self._errors = []

    def lookup(self, record_id: str) -> str:
        """Liest den Datensatz zu einer Kennung.

        Args:
            record_id: Kennung des Datensatzes

        Returns:
            Menge und Einzelpreis als JSON
        """
        if not isinstance(record_id, str):
            return self._refuse("wrong_argument_type", "record_id muss ein Text sein")
        if record_id != self._record_id:
            return self._refuse("wrong_id", "unbekannte Kennung")
        self._errors.append(None)
        return json.dumps(self._facts)

    def calculator(self, expression: str) -> str:
        """Berechnet einen Rechenausdruck.

        Args:
            expression: Rechenausdruck aus Zahlen, + - * / und Klammern

        Returns:
            Ergebnis der Rechnung
        """
        if not isinstance(expression, str):
            return self._refuse("wrong_argument_type", "expression muss ein Text sein")
        try:
            value = calculate(expression)
        except ExpressionError as error:
            return self._refuse("refused_expression", str(error))
        self._errors.append(None)
        return value

    def _refuse(self, kind: ErrorKind, reason: str) -> str:
        self._errors.append(kind)
        return f"Fehler: {reason}"


def run_call(environment: Environment, request: Request, turn: int) -> Call:
    """Execute one call in the environment and return its record, `retained=True` until the stream says otherwise."""
    kind = request.error
    if kind is None and request.name not in TOOLS:
        kind = "unknown_tool"
    if kind is None:
        kind, observation = _invoke(environment, str(request.name), request.arguments or {})
    else:
        observation = f"Fehler: {request.reason or REASONS[kind]}"
    return Call(turn, request.name, request.arguments, observation, kind, retained=True)


def _invoke(
    environment: Environment, name: str, arguments: dict[str, Any]
) -> tuple[ErrorKind | None, str]:
    tool = getattr(environment, name)
    wanted = inspect.signature(tool).parameters
    if set(arguments) != set(wanted):
        return (
            "wrong_arguments",
            f"Fehler: {name} braucht genau das Argument {' und '.join(wanted)}",
        )
    observation = tool(**arguments)
    return environment._errors[-1], observation  # noqa: SLF001 - private to TRL, which makes a tool of every public name


def judge(
    calls: Sequence[Call],
    facts: dict[str, int],
    truth: int,
    answer: int | None,
    end: EndKind,
    invented: bool,
    rules: Success,
) -> Outcome:
    """Outcome of one episode from its call log.

    Args:
        calls: every tool call in order.
        facts: the record's two private values.
        truth: their product.
        answer: integer of a well-formed last turn, else None.
        end: what ended the episode.
        invented: whether a sampled turn contains text that only the environment may write.
        rules: config `protocol.success`.
    """
    looked, multiplied = _milestones(calls, facts)
    workflow = False
    if looked is not None and multiplied is not None:
        found = _departures(calls, looked, multiplied, invented)
        workflow = not any(
            there and getattr(rules, rule) == "breaks" for rule, there in found.items()
        )
    correct = answer is not None and answer == truth
    errors = sum(call.error is not None for call in calls)
    return Outcome(
        looked is not None,
        multiplied is not None,
        workflow,
        answer,
        correct,
        workflow and correct,
        errors,
        end,
    )


def _milestones(calls: Sequence[Call], facts: dict[str, int]) -> tuple[int | None, int | None]:
    """Places in the log of the first successful lookup and of the first product in a later turn; None for what never came."""
    looked = next((place for place, call in enumerate(calls) if _succeeded(call, "lookup")), None)
    if looked is None:
        return None, None
    later = (
        place for place in range(looked + 1, len(calls)) if calls[place].turn > calls[looked].turn
    )
    return looked, next((place for place in later if _is_product(calls[place], facts)), None)


def _departures(
    calls: Sequence[Call], looked: int, multiplied: int, invented: bool
) -> dict[str, bool]:
    """Each rule of `config.Success` -> whether the episode departs from it."""
    between, outside = calls[looked + 1 : multiplied], [*calls[:looked], *calls[multiplied + 1 :]]
    return {
        "late_calculation": any(_succeeded(call, *TOOLS) for call in between),
        "repeated_lookup": sum(_succeeded(call, "lookup") for call in calls) > 1,
        "extra_calculation": any(_succeeded(call, "calculator") for call in outside),
        "failed_call": any(call.error not in (None, "second_call") for call in between),
        "second_call": any(call.error == "second_call" for call in calls),
        "invented_text": invented,
    }


def _succeeded(call: Call, *names: str) -> bool:
    """Whether one of these tools answered the call and its observation stands in the stream."""
    return call.retained and call.error is None and call.name in names


def _is_product(call: Call, facts: dict[str, int]) -> bool:
    if not _succeeded(call, "calculator"):
        return False
    pair = factors((call.arguments or {})["expression"])
    return pair is not None and sorted(pair) == sorted(facts.values())
