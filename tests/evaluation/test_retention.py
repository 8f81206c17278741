"""Retention: the pinned MGSM file or nothing, a frozen choice of items, and two readings of an answer."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import Qwen3ForCausalLM

from agentrl.engine.scripted import ScriptedEngine
from agentrl.engine.transformers import TransformersEngine
from agentrl.evaluation import retention
from agentrl.evaluation.mgsm import MGSM_CONTRADICTED
from agentrl.evaluation.retention import Item, RetentionError
from agentrl.evaluation.settings import Retention
from agentrl.rollout.chat import ChatProtocol
from agentrl.rollout.sampler import Request
from agentrl.rollout.settings import Decoding
from agentrl.study.config import Study
from agentrl.training.expert import encode_turn

MGSM = Path(__file__).resolve().parents[3] / "shared/data/mgsm_de.tsv"
PINNED = ["mgsm-de-002", "mgsm-de-004", "mgsm-de-006", "mgsm-de-017"]
"""First of the 64 items that seed 42 chooses."""


@pytest.fixture(scope="module")
def items() -> list[Item]:
    if not MGSM.is_file():
        pytest.skip(f"{MGSM} is not here; the pipeline fetches it, tests do not")
    return retention.mgsm_items(MGSM, cache=Path("unused"))


@pytest.fixture
def section(study: Study) -> Callable[..., Retention]:
    return lambda **changes: study.retention.model_copy(
        update={"source": "mgsm", "items": 64, "seed": 42, "ids": None} | changes
    )


def test_all_items_in_file_order(items: list[Item]) -> None:
    assert [item.id for item in items] == [f"mgsm-de-{n:03d}" for n in range(1, 251)]
    assert all(item.question == item.question.strip() and item.question for item in items)
    assert items[0].answer == 18
    assert {item.id for item in items} >= MGSM_CONTRADICTED


@pytest.mark.parametrize("number", [147, 202, 231, 250])
def test_english_thousands_commas_are_no_decimals(items: list[Item], number: int) -> None:
    gold = MGSM.read_text(encoding="utf-8").splitlines()[number - 1].split("\t")[1]
    assert "," in gold
    assert items[number - 1].answer == int(gold.replace(",", "")) >= 1000


def test_only_those_four_golds_have_commas(items: list[Item]) -> None:
    golds = [line.split("\t")[1] for line in MGSM.read_text(encoding="utf-8").splitlines()]
    assert [n for n, gold in enumerate(golds, 1) if not gold.isdecimal()] == [147, 202, 231, 250]
    assert all(
        item.answer == int(gold)
        for item, gold in zip(items, golds, strict=True)
        if gold.isdecimal()
    )


def test_another_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "mgsm_de.tsv"
    file.write_text("Wie viel ist 1 + 1?\t2\n", encoding="utf-8")
    for path in (file, None):
        with pytest.raises(
            RetentionError,
            match=rf"{file}: sha256 [0-9a-f]{{64}}, expected {retention.MGSM_SHA256}",
        ):
            retention.mgsm_items(path, cache=tmp_path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(RetentionError, match=r"nowhere\.tsv: not found; set retention\.path"):
        retention.mgsm_items(tmp_path / "nowhere.tsv", cache=tmp_path)


def test_selection_by_seed_is_frozen(items: list[Item], section: Callable[..., Retention]) -> None:
    chosen = [item.id for item in retention.select(items, section())]
    assert len(set(chosen)) == 64
    assert chosen == sorted(chosen)
    assert chosen == [item.id for item in retention.select(items, section())]
    assert chosen[:4] == PINNED
    assert chosen != [item.id for item in retention.select(items, section(seed=43))]


def test_selection_by_ids_keeps_their_order(
    items: list[Item], section: Callable[..., Retention]
) -> None:
    ids = ("mgsm-de-250", "mgsm-de-001")
    assert tuple(item.id for item in retention.select(items, section(ids=ids, items=2))) == ids
    with pytest.raises(
        RetentionError,
        match=r"'mgsm-de-251' is no item of mgsm \(known: mgsm-de-001 to mgsm-de-250\)",
    ):
        retention.select(items, section(ids=("mgsm-de-251",), items=1))


def test_more_items_than_there_are_is_refused(
    items: list[Item], section: Callable[..., Retention]
) -> None:
    with pytest.raises(RetentionError, match="300 wanted, mgsm has 250"):
        retention.select(items, section(items=300))


def test_prompt_holds_the_question_verbatim(section: Callable[..., Retention]) -> None:
    question = "Was kosten {zwei} Äpfel zu 1.000,50 €?"
    system, user = retention.messages(section(), question)
    assert system == {"role": "system", "content": section().system}
    assert user["role"] == "user"
    assert user["content"].startswith(question)
    assert "<answer>" in user["content"]


@pytest.mark.parametrize(
    ("text", "strict", "flexible"),
    [
        ("<think>\n3\n</think>\n\n<answer>18</answer><|im_end|>", 18, 18),
        ("<answer>18</answer>\n", 18, 18),
        ("<answer>-18</answer>", -18, -18),
        ("<think>\n<answer>18</answer>", None, None),
        ("<think>18</think>", None, None),
        ("Das Ergebnis ist 18.", None, 18),
        ("<answer>1.234</answer>", None, 1234),
        ("<answer>1,234</answer>", None, 1234),
        ("<answer>1.234.567,00 €</answer>", None, 1234567),
        ("<answer>$1,234,567.00</answer>", None, 1234567),
        ("<answer>18,00</answer>", None, 18),
        ("<answer>18.0</answer>", None, 18),
        ("<answer>12,000</answer>", None, 12000),
        ("<answer>12.000</answer>", None, 12000),
        ("<answer>1234,000</answer>", None, 1234),
        ("0,250", None, None),
        ("0.250", None, None),
        ("<answer>18</answer> Euro", None, 18),
        ("<answer>18</answer><think>doch 19</think>", None, None),
        ("<answer>18</answer><think>doch 19", None, 18),
        ("<think>3<think>4</think>5</think>Es sind 6.", None, 6),
        ("<answer>1<think>x</think>8</answer>", None, 8),
        ("Es sind 5, nein: 2,5 Liter", None, 5),
        ("Rest: 12.50", None, None),
        ("20-5=15", None, 15),
        ("Seite 3-4", None, 4),
        ("also -4", None, -4),
        ("keine Ahnung", None, None),
        ("9" * 5000, None, None),
        ("", None, None),
    ],
)
def test_answers_are_read_strictly_and_flexibly(
    text: str, strict: int | None, flexible: int | None
) -> None:
    assert retention.strict_answer(text) == strict
    assert retention.flexible_answer(text) == flexible


@given(st.integers(-(10**9), 10**9))
def test_german_english_and_plain_formats_agree(value: int) -> None:
    english = f"{value:,}"
    german = english.replace(",", ".")
    for written in (
        str(value),
        english,
        german,
        f"{english}.00",
        f"{german},00",
        f"{value},0",
        f"{value}.0",
        f"{value}.",
    ):
        assert retention.flexible_answer(f"Zuerst 7, am Ende {written}") == value


@given(st.text())
def test_no_output_breaks_the_readers(text: str) -> None:
    strict, flexible = retention.strict_answer(text), retention.flexible_answer(text)
    assert strict is None or strict == flexible


def test_answers_are_sampled_within_the_limit_and_scored_twice(
    chat: ChatProtocol, section: Callable[..., Retention]
) -> None:
    said = {
        "a": "<think>x</think><answer>18</answer>",
        "b": "Es sind 18.",
        "c": "<answer>17</answer>",
        "d": "<answer>18</answer>" + " und" * 50,
    }
    items = [Item(name, f"Frage {name}?", 18) for name in said]
    seen: list[Request] = []

    def speak(request: Request) -> list[int]:
        seen.append(request)
        return encode_turn(chat, said[str(request.key[-1])])

    chosen = section(batch_size=3, max_tokens=40)
    batches = list(
        retention.answers(ScriptedEngine(speak, chat.stop_ids), chat, items, chosen, "baseline", 0)
    )
    assert [len(batch) for batch in batches] == [3, 1]
    found = [answer for batch in batches for answer in batch]
    assert [
        (a.item, a.strict, a.flexible, a.correct, a.flexible_correct, a.finish) for a in found
    ] == [
        ("a", 18, 18, True, True, "stop"),
        ("b", None, 18, False, True, "stop"),
        ("c", 17, 17, False, False, "stop"),
        ("d", None, 18, False, True, "length"),
    ]
    assert retention.measures(found, 5) == {
        "items": 4, "correct": 1, "flexible_correct": 3, "malformed_finals": 2, "malformed_uncapped": 1, "token_cap": 1,
        "assistant_tokens": sum(len(a.ids) for a in found), "infrastructure_errors": 1,
    }  # fmt: skip
    assert [(request.max_tokens, request.key) for request in seen] == [
        (40, ("retention", chosen.decoding.seed, name)) for name in said
    ]
    assert all("<tools>" not in chat.decode(request.context) for request in seen)
    assert [answer.prompt_ids for answer in found] == [request.context for request in seen]


def test_an_unchanged_policy_differs_in_no_answer(
    chat: ChatProtocol, section: Callable[..., Retention], tiny_model: Qwen3ForCausalLM
) -> None:
    items, chosen = (
        [Item(name, "Wie viel ist 9 + 9?", 18) for name in "abcdef"],
        section(batch_size=4, max_tokens=12),
    )
    engine = TransformersEngine(
        tiny_model,
        Decoding(temperature=1.0, top_p=1.0, top_k=0, min_p=0.0, seed=42),
        chat.stop_ids,
        0,
    )

    def ids(policy: str, step: int) -> dict[str, list[int]]:
        return {
            answer.item: answer.ids
            for batch in retention.answers(engine, chat, items, chosen, policy, step)
            for answer in batch
        }

    start, candidate = ids("baseline", 0), ids("x/seed-1", 32)
    assert [item for item, found in start.items() if candidate[item] != found] == []
    assert len({tuple(found) for found in start.values()}) == len(items), (
        "items of the same text draw from streams of their own"
    )


def test_an_answer_cut_by_the_limit_is_no_strict_answer(
    chat: ChatProtocol, section: Callable[..., Retention]
) -> None:
    """Cut behind the closing tag: whether the policy would have stopped there is unknown."""
    text = "<answer>18</answer>"
    limit = len(encode_turn(chat, text)) - 1
    engine = ScriptedEngine(lambda _: encode_turn(chat, text), chat.stop_ids)
    ((answer,),) = retention.answers(
        engine, chat, [Item("a", "?", 18)], section(max_tokens=limit), "baseline", 0
    )
    assert (answer.finish, answer.strict, answer.correct, answer.flexible_correct) == (
        "length",
        None,
        False,
        True,
    )


def test_items_survive_writing(tmp_path: Path) -> None:
    items = [Item("a", "Größe\u2028in €?\x85", 18), Item("b", "?", -1)]
    path = tmp_path / "items.jsonl"
    retention.write_items(path, items)
    assert retention.read_items(path) == items


@pytest.mark.parametrize(
    "line",
    [
        "{}",
        "x",
        "\udcff",
        "[]",
        '{"id": "a", "question": "?", "answer": 1}',
        '{"id": "b", "question": "?", "answer": "1"}',
        '{"id": "b", "question": "?", "answer": 1, "x": 1}',
    ],
)
def test_damaged_items_are_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "items.jsonl"
    retention.write_items(path, [Item("a", "?", 18)])
    with open(path, "a", encoding="utf-8", errors="surrogateescape") as stream:
        stream.write(line + "\n")
    with pytest.raises(RetentionError, match=rf"{path}, line 2: not a retention item"):
        retention.read_items(path)
