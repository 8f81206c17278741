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

from agentrl.calculator import ExpressionError, calculate, factors

ErrorKind = Literal["unknown_tool", "unparseable", "wrong_id", "refused_expression", "second_call"]
EndKind = Literal["answer", "malformed", "turn_cap", "token_cap", "observation_cap"]
TOOLS = ("calculator", "lookup")
"""Alphabetical, as TRL collects the methods of an environment: the rendered tool list must not depend on the caller."""


@dataclass(frozen=True)
class Request:
    """One tool call as the policy wrote it. `error` is set where the text itself is already a tool error."""

    name: str | None = None
    arguments: dict[str, Any] | None = None
    error: ErrorKind | None = None


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
    """The successful calls are exactly lookup, then product; never two calls in a turn, nothing invented."""
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
        try:
            value = calculate(expression) if isinstance(expression, str) else None
        except ExpressionError as error:
            return self._refuse("refused_expression", str(error))
        if value is None:
            return self._refuse("refused_expression", "Ausdruck muss ein Text sein")
        self._errors.append(None)
        return value

    def _refuse(self, kind: ErrorKind, reason: str) -> str:
        self._errors.append(kind)
        return f"Fehler: {reason}"


def run_call(environment: Environment, request: Request, turn: int) -> Call:
    """Execute one call in the environment and return its record, `retained=True` until the stream says otherwise."""
    kind, observation = request.error, ""
    if kind == "second_call":
        observation = "Fehler: nur ein Aufruf pro Zug"
    elif kind is not None:
        observation = "Fehler: Aufruf ist kein gültiges JSON mit name und arguments"
    elif request.name not in TOOLS:
        kind, observation = "unknown_tool", "Fehler: unbekanntes Werkzeug"
    else:
        kind, observation = _invoke(environment, request.name, request.arguments or {})
    return Call(turn, request.name, request.arguments, observation, kind, retained=True)


def _invoke(environment: Environment, name: str, arguments: dict[str, Any]) -> tuple[ErrorKind | None, str]:
    tool = getattr(environment, name)
    if set(arguments) != set(inspect.signature(tool).parameters):
        kind: ErrorKind = "wrong_id" if name == "lookup" else "refused_expression"
        return kind, "Fehler: falsche Argumente"
    observation = tool(**arguments)
    return environment._errors[-1], observation  # noqa: SLF001 - private to TRL, which makes a tool of every public name


def judge(
    calls: Sequence[Call],
    facts: dict[str, int],
    truth: int,
    answer: int | None,
    end: EndKind,
    invented: bool,
    failed_call_breaks_success: bool,
) -> Outcome:
    """Outcome of one episode from its call log.

    Args:
        calls: every tool call in order.
        facts: the record's two private values.
        truth: their product.
        answer: integer of a well-formed last turn, else None.
        end: what ended the episode.
        invented: whether a sampled turn contains text that only the environment may write.
        failed_call_breaks_success: config `protocol.failed_call_breaks_success`.
    """
    counted = [call for call in calls if call.retained and call.error is None]
    lookups = [call.turn for call in counted if call.name == "lookup"]
    products = [c.turn for c in counted if c.name == "calculator" and _is_product(c, facts)]
    calculation = bool(lookups) and any(turn > lookups[0] for turn in products)
    workflow = (
        calculation
        and len(counted) == 2  # lookup and product, nothing else succeeded
        and not invented
        and all(call.error != "second_call" for call in calls)  # one call a turn, then wait: asked for by the prompt
        and not (failed_call_breaks_success and _failed_between(calls, lookups[0], products[-1]))
    )
    correct = answer is not None and answer == truth
    errors = sum(call.error is not None for call in calls)
    return Outcome(bool(lookups), calculation, workflow, answer, correct, workflow and correct, errors, end)


def _is_product(call: Call, facts: dict[str, int]) -> bool:
    pair = factors((call.arguments or {})["expression"])
    return pair is not None and sorted(pair) == sorted(facts.values())


def _failed_between(calls: Sequence[Call], first: int, last: int) -> bool:
    return any(call.error is not None and first <= call.turn <= last for call in calls)
