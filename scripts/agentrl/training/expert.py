"""Expert trajectories: look up, multiply with the tool, answer.

Played through the study's own loop, so that a policy which is taught them learns exactly the protocol it is evaluated in.
"""

import json
from collections.abc import Mapping, Sequence
from random import Random

from agentrl.engine.scripted import ScriptedEngine
from agentrl.rollout.chat import END_OF_TURN, ChatProtocol
from agentrl.rollout.loop import Rollout
from agentrl.rollout.sampler import Request
from agentrl.rollout.settings import Protocol
from agentrl.rollout.trajectory import Key, Trajectory
from agentrl.tasks.families import Task, lookup_call

LOOK_UP = (
    "Ich schlage den Datensatz nach.",
    "Zuerst hole ich die Werte zur Bestellung.",
    "Die Werte kenne ich noch nicht, also lookup.",
)
CALCULATE = (
    "Ich rechne mit dem Werkzeug.",
    "Nun das Produkt mit calculator.",
    "Das Produkt überlasse ich dem Rechner.",
)
REPORT = ("Ich gebe das Ergebnis an.", "Das Werkzeug hat geantwortet.")


def script(task: Task, rng: Random) -> list[str]:
    """Texts of the assistant's three turns."""
    first, second = task.facts.values()
    return [
        turn(rng.choice(LOOK_UP), lookup_call(task.record_id)),
        turn(rng.choice(CALCULATE), calculator_call(f"{first} * {second}")),
        turn(rng.choice(REPORT), f"<answer>{task.answer}</answer>"),
    ]


def play(
    tasks: Sequence[Task],
    turns: Mapping[str, Sequence[str]],
    chat: ChatProtocol,
    protocol: Protocol,
    policy: str,
    seed: int,
) -> list[Trajectory]:
    """One episode per task whose assistant says `turns[task.id]`; the records name `policy`, step 0, trial 0 and `seed`."""

    def speak(request: Request) -> list[int]:
        *_, task, _, index = request.key
        return encode_turn(chat, turns[str(task)][int(index)])

    rollout = Rollout(ScriptedEngine(speak, chat.stop_ids), chat, protocol)
    return rollout.play(tasks, [Key(policy, 0, task.split, task.id, 0, seed) for task in tasks])


def turn(thought: str, content: str) -> str:
    """Text of one assistant turn: closed thinking, then what counts."""
    return f"<think>\n{thought}\n</think>\n\n{content}"


def calculator_call(expression: str) -> str:
    """Text of one calculator call."""
    return f"<tool_call>\n{json.dumps({'name': 'calculator', 'arguments': {'expression': expression}})}\n</tool_call>"


def encode_turn(chat: ChatProtocol, text: str) -> list[int]:
    """Ids of one assistant turn, end of turn included."""
    return list(chat.tokenizer.encode(text + END_OF_TURN, add_special_tokens=False))
