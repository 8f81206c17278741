"""Supervised examples of the demo policy: expert trajectories with departures, and word problems.

Trajectories are played through the study's own rollout and environment by a scripted engine, so that the policy learns exactly
the protocol it is evaluated in. The departures (`Mixture`) are what GRPO has to train away again.
"""

from collections.abc import Sequence
from random import Random

from agentrl.demo.settings import Mixture
from agentrl.demo.wordproblems import PAIRS, Problem
from agentrl.evaluation import retention
from agentrl.evaluation.settings import RetentionPrompt
from agentrl.rollout.chat import ChatProtocol
from agentrl.rollout.settings import Protocol
from agentrl.rollout.trajectory import Trajectory
from agentrl.tasks.families import CONSONANTS, Task, lookup_call
from agentrl.training import expert
from agentrl.training.expert import CALCULATE, LOOK_UP, REPORT, calculator_call, encode_turn, turn
from agentrl.training.supervised import Example, example

IN_THE_HEAD = ("Das rechne ich im Kopf.", "Das überschlage ich selbst.")
BARE = ("Ich prüfe mein Ergebnis mit dem Werkzeug.",)
ADD = ("Ich zähle die Werte zusammen.",)
DRILL_SYMBOLS = 16
DRILL_EQUATIONS = 30
TALK = ("Ich antworte in einem Satz.",)


def demonstrate(
    tasks: Sequence[Task], chat: ChatProtocol, protocol: Protocol, mixture: Mixture, seed: int
) -> list[Trajectory]:
    """Play one demonstration per task; departures are drawn by `mixture`."""
    rng = Random(f"demonstrations/{seed}")
    turns = {task.id: script(task, mixture, rng) for task in tasks}
    return expert.play(tasks, turns, chat, protocol, "demonstration", seed)


def script(task: Task, mixture: Mixture, rng: Random) -> list[str]:
    """Texts of the assistant's turns: expert, or with departures."""
    first, second = task.facts.values()
    turns = [turn(rng.choice(LOOK_UP), lookup_call(task.record_id))]
    draw = rng.random()
    departures = (
        ("guess", mixture.guess),
        ("bare", mixture.bare_result),
        ("add", mixture.wrong_formula),
    )
    course = "expert"
    for name, share in departures:
        if draw < share:
            course = name
            break
        draw -= share
    value = task.answer + rng.choice((-20, -10, -3, -2, -1, 1, 2, 3, 10, 20))
    if course == "guess":
        return [*turns, _answer(value, IN_THE_HEAD, mixture, rng)]
    if course == "bare":
        turns.append(turn(rng.choice(BARE), calculator_call(str(value))))
        return [*turns, _answer(value, REPORT, mixture, rng)]
    if course == "add":
        turns.append(turn(rng.choice(ADD), calculator_call(f"{first} + {second}")))
        return [*turns, _answer(first + second, REPORT, mixture, rng)]
    turns.append(turn(rng.choice(CALCULATE), calculator_call(f"{first} * {second}")))
    return [*turns, _answer(task.answer, REPORT, mixture, rng)]


def solve(
    problem: Problem, chat: ChatProtocol, section: RetentionPrompt, mixture: Mixture, rng: Random
) -> Example:
    """One word problem with its worked answer, in the retention prompt."""
    off = rng.choice((-2, -1, 1, 2)) if rng.random() < mixture.wrong_sum else 0
    value = problem.answer + off
    text = turn(f"{problem.a} {problem.op} {problem.b} = {value}", f"<answer>{value}</answer>")
    prompt = chat.prompt(retention.messages(section, problem.question), tools=False)
    answer = encode_turn(chat, text)
    return Example(prompt + answer, [0] * len(prompt) + [1] * len(answer))


def drill(chat: ChatProtocol, rng: Random) -> Example:
    """Random letters and digits, said twice; the second time is taught.

    A small transformer learns to copy late and by a jump (induction heads; Olsson et al. 2022, arXiv 2209.11895). Sequences that are
    nothing but copying bring the jump forward by hundreds of steps.
    """
    symbols = chat.tokenizer.convert_tokens_to_ids([*CONSONANTS, *"0123456789"])
    said = rng.choices(symbols, k=DRILL_SYMBOLS)
    return Example(said * 2, [0] * len(said) + [1] * len(said))


def equations(chat: ChatProtocol, rng: Random) -> Example:
    """A column of sums and differences as the word problems use them; only the results are taught."""
    ids: list[int] = []
    mask: list[int] = []
    for _ in range(DRILL_EQUATIONS):
        op = rng.choice("+-")
        a, b = rng.choice(PAIRS[op])
        for text, taught in ((f"{a} {op} {b} = ", 0), (f"{a + b if op == '+' else a - b}\n", 1)):
            said = chat.tokenizer.encode(text, add_special_tokens=False)
            ids += said
            mask += [taught] * len(said)
    return Example(ids, mask)


def tail(trajectory: Trajectory) -> Example:
    """A trajectory from its first observation on: the steps that copy values, without the prompt that makes rows long."""
    whole, first = example(trajectory), len(trajectory.prompt_ids) + len(trajectory.sampled[0].ids)
    return Example(whole.ids[first:], whole.mask[first:])


def _answer(value: int, thoughts: Sequence[str], mixture: Mixture, rng: Random) -> str:
    if rng.random() < mixture.free_answer:
        return turn(rng.choice(TALK), f"Das Ergebnis ist {value}.")
    return turn(rng.choice(thoughts), f"<answer>{value}</answer>")
