"""Replay one recorded episode from its token ids alone: decode, parse, execute every call anew, render every observation anew.

The state machine is written here a second time on purpose: it shares the parser, the tools and the tokenizer with the rollout, but neither
its loop nor its judgement, so an error there does not vouch for itself.
"""

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from agentrl.rollout.chat import ChatProtocol, parse_turn
from agentrl.rollout.settings import Protocol
from agentrl.tasks.environment import Environment, run_call
from agentrl.tasks.families import Task
from agentrl.training.settings import Reward

Mismatch = tuple[str, str, object, object]
"""(kind, field, expected, found)."""


@dataclass
class Replay:
    """What the ids prove, and where the record says otherwise."""

    calls: list[dict[str, Any]] = field(default_factory=list)
    outcome: dict[str, Any] = field(default_factory=dict)
    mask: list[int] = field(default_factory=list)
    mismatches: list[Mismatch] = field(default_factory=list)
    sampled: int = 0
    external: int = 0


def replay(record: Mapping[str, Any], task: Task, chat: ChatProtocol, protocol: Protocol) -> Replay:
    """Re-derive calls, outcome and loss mask of one record (plain JSON) and compare each with what it claims."""
    found = Replay()
    segments = record["segments"]
    expected_prompt = chat.prompt(task.messages())
    if segments[0]["kind"] != "prompt" or segments[0]["ids"] != expected_prompt:
        found.mismatches.append(("prompt", "segments[0]", expected_prompt, segments[0]["ids"]))
    walk = _Walk(record, task, chat, protocol, found)
    walk.run()
    found.outcome = _outcome(walk, task, protocol)
    _compare(found, "calls", "calls", found.calls, record["calls"])
    for name, value in found.outcome.items():
        _compare(found, "outcome", f"outcome.{name}", value, record["outcome"].get(name))
    return found


class _Walk:
    """Steps through a record's segments turn by turn."""

    def __init__(
        self,
        record: Mapping[str, Any],
        task: Task,
        chat: ChatProtocol,
        protocol: Protocol,
        found: Replay,
    ) -> None:
        self.segments = record["segments"][1:]
        self.chat, self.protocol, self.found = chat, protocol, found
        self.environment = Environment()
        self.environment.reset(record_id=task.record_id, facts=task.facts)
        self.at = self.used = self.turn = 0
        self.invented = False
        self.answer: int | None = None
        self.end = ""

    def run(self) -> None:
        """Until the episode ends; leftover segments are a break."""
        while not self.end:
            if self.at >= len(self.segments) or self.segments[self.at]["kind"] != "sampled":
                self.found.mismatches.append(
                    ("segments", f"segments[{self.at + 1}]", "a sampled turn", self._kind_here())
                )
                self.end = "broken"
                return
            self._sampled(self.segments[self.at])
        if self.at != len(self.segments):
            self.found.mismatches.append(
                (
                    "segments",
                    "segments",
                    f"{self.at + 1} segments",
                    f"{len(self.segments) + 1} segments",
                )
            )

    def _kind_here(self) -> str:
        return (
            self.segments[self.at]["kind"]
            if self.at < len(self.segments)
            else "the end of the record"
        )

    def _sampled(self, segment: Mapping[str, Any]) -> None:
        ids, where = segment["ids"], f"segments[{self.at + 1}]"
        room = self.protocol.budget - self.used
        stopped = [i for i, token in enumerate(ids) if token in self.chat.stop_ids]
        finish = "stop" if stopped == [len(ids) - 1] and ids else "length"
        if (
            not ids
            or len(ids) > room
            or (stopped and finish != "stop")
            or (finish == "length" and len(ids) != room)
        ):
            self.found.mismatches.append(
                (
                    "budget",
                    f"{where}.ids",
                    f"one turn that stops or fills {room} tokens",
                    f"{len(ids)} ids",
                )
            )
        _compare(self.found, "segments", f"{where}.finish", finish, segment.get("finish"))
        _compare(
            self.found,
            "segments",
            f"{where}.logprobs",
            len(ids),
            len(segment.get("logprobs") or []),
        )
        self.found.mask += [1] * len(ids)
        self.found.sampled += len(ids)
        self.used += len(ids)
        self.at += 1
        self._continue(ids, finish)

    def _continue(self, ids: Sequence[int], finish: str) -> None:
        turn = parse_turn(self.chat.decode(ids))
        self.invented = self.invented or turn.invented
        if finish == "length":
            self.end = "token_cap"
        elif not turn.calls or ids[-1] != self.chat.end_of_turn:
            self.answer = None if turn.calls else turn.answer
            self.end = "answer" if self.answer is not None else "malformed"
        elif self.turn >= self.protocol.max_tool_iterations:
            self.end = "turn_cap"
        else:
            self._observe(
                [run_call(self.environment, request, self.turn) for request in turn.calls]
            )
        self.turn += 1

    def _observe(self, calls: Sequence[Any]) -> None:
        pieces = self.chat.suffix([call.observation for call in calls])
        size = sum(len(piece.ids) for piece in pieces)
        fits = self.used + size < self.protocol.budget
        for call in calls:
            self.found.calls.append({**vars(call), "retained": fits})
        if not fits:
            self.end = "observation_cap"
            return
        for piece in pieces:
            here = (
                self.segments[self.at]
                if self.at < len(self.segments)
                else {"kind": "nothing", "ids": []}
            )
            if (here["kind"], here["ids"]) != (piece.kind, list(piece.ids)):
                claim = (piece.kind, self.chat.decode(piece.ids))
                kind = "observation" if piece.kind == "observation" else "segments"
                self.found.mismatches.append(
                    (
                        kind,
                        f"segments[{self.at + 1}]",
                        claim,
                        (here["kind"], self.chat.decode(here["ids"])),
                    )
                )
            self.at += 1
        self.found.mask += [0] * size
        self.found.external += size
        self.used += size


def _outcome(walk: _Walk, task: Task, protocol: Protocol) -> dict[str, Any]:
    """Milestones and success from the replayed calls."""
    course = _Course(task)
    for call in walk.found.calls:
        course.take(call)
    if walk.invented:
        course.departures.add("invented_text")
    breaking = {name for name, effect in protocol.success if effect == "breaks"}
    workflow = course.stage == "multiplied" and not course.departures & breaking
    correct = walk.answer is not None and walk.answer == task.answer
    return {
        "lookup": course.stage != "start",
        "calculation": course.stage == "multiplied",
        "workflow": workflow,
        "answer": walk.answer,
        "answer_correct": correct,
        "strict": workflow and correct,
        "tool_errors": sum(call["error"] is not None for call in walk.found.calls),
        "end": walk.end,
    }


class _Course:
    """One pass over the calls: start, then looked up, then multiplied; what departs from that is collected under its rule's name."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.stage = "start"
        self.looked_in = -1
        self.departures: set[str] = set()

    def take(self, call: Mapping[str, Any]) -> None:
        """The next call of the episode."""
        if call["error"] == "second_call":
            self.departures.add("second_call")
        elif call["error"] is not None:
            self.departures |= {"failed_call"} if self.stage == "looked up" else set()
        elif call["retained"]:
            self._looked_up(call["turn"]) if call["name"] == "lookup" else self._calculated(call)

    def _looked_up(self, turn: int) -> None:
        if self.stage == "start":
            self.stage, self.looked_in = "looked up", turn
            return
        self.departures.add("repeated_lookup")
        if self.stage == "looked up":
            self.departures.add("late_calculation")

    def _calculated(self, call: Mapping[str, Any]) -> None:
        if self.stage != "looked up":
            self.departures.add("extra_calculation")
        elif call["turn"] > self.looked_in and _multiplies(
            call["arguments"]["expression"], self.task
        ):
            self.stage = "multiplied"
        else:
            self.departures.add("late_calculation")


def _multiplies(expression: str, task: Task) -> bool:
    """Whether the expression is one product of exactly the two facts, read from its syntax tree."""
    tree = ast.parse(expression.strip(), mode="eval").body
    if not isinstance(tree, ast.BinOp) or type(tree.op) is not ast.Mult:
        return False
    values = [getattr(side, "value", None) for side in (tree.left, tree.right)]
    if not all(type(value) is int for value in values):  # 7.0 equals 7, but is no retrieved value
        return False
    return values in (list(task.facts.values()), list(task.facts.values())[::-1])


def milestone_reward(outcome: Mapping[str, Any], weights: Reward) -> float:
    """The shaped reward, from a replayed outcome."""
    parts = [
        weights.lookup if outcome["lookup"] else 0.0,
        weights.calculation if outcome["calculation"] else 0.0,
    ]
    parts += [
        weights.strict if outcome["strict"] else 0.0,
        -weights.tool_error * outcome["tool_errors"],
    ]
    return max(0.0, min(1.0, sum(parts)))


def runs(mask: Sequence[int]) -> list[list[int]]:
    """A mask as [value, length] runs."""
    return [[value, sum(1 for _ in run)] for value, run in groupby(mask)]


def group_relative(rewards: Sequence[float], size: int, scaled: bool) -> Iterator[float]:
    """Advantages of consecutive groups: (r - mean) / (s + 1e-4) with the sample standard deviation, or r - mean."""
    for start in range(0, len(rewards), size):
        group = rewards[start : start + size]
        mean = sum(group) / size
        spread = (sum((r - mean) ** 2 for r in group) / (size - 1)) ** 0.5
        yield from ((r - mean) / (spread + 1e-4) if scaled else r - mean for r in group)


def _compare(found: Replay, kind: str, name: str, expected: object, claimed: object) -> None:
    if expected != claimed:
        found.mismatches.append((kind, name, expected, claimed))
