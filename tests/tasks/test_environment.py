"""Environment: private facts behind documented tools, every mistake logged, nothing ever raised at the policy."""

import copy
import inspect
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
from datasets import Dataset
from hypothesis import given
from hypothesis import strategies as st
from raw_studies import PILOT_RAW
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM
from trl import GRPOConfig, GRPOTrainer

from agentrl.rollout.chat import tool_schemas
from agentrl.study.config import validate_study
from agentrl.tasks.environment import (
    REASONS,
    TOOLS,
    Call,
    Environment,
    ErrorKind,
    Request,
    judge,
    run_call,
)
from agentrl.tasks.families import Task

ROW = {"record_id": "LNFWW", "facts": {"menge": 7, "einzelpreis": 59}}
FACTS = {"menge": 7, "einzelpreis": 59}
RULES = validate_study(PILOT_RAW).protocol.success
JSON_VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(),
    st.lists(st.integers()),
)
ARGUMENTS = st.dictionaries(st.sampled_from(["record_id", "expression", "self", "x"]), JSON_VALUES)


@pytest.fixture
def environment() -> Environment:
    environment = Environment()
    environment.reset(**ROW)
    return environment


def test_public_surface_is_trl_contract() -> None:
    """TRL makes a tool of every public function of the class but `reset` and `get_reward`."""
    public = [
        name
        for name, _ in inspect.getmembers(Environment, inspect.isfunction)
        if not name.startswith("_")
    ]
    assert public == ["calculator", "lookup", "reset"]
    assert tuple(name for name in public if name != "reset") == TOOLS


def test_plain_trl_trains_with_the_environment(
    tmp_path: Path,
    tiny_model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    tasks: list[Task],
) -> None:
    """One step of TRL's own tool loop: each generation gets its own environment, reset with its row."""
    rows = [
        {"prompt": task.messages(), "record_id": task.record_id, "facts": json.dumps(task.facts)}
        for task in tasks[:2]
    ]
    answered: list[bool] = []

    def reward(
        environments: list[Environment], record_id: list[str], facts: list[str], **_: object
    ) -> list[float]:
        answered.extend(
            e.lookup(i) == json.dumps(json.loads(f))
            for e, i, f in zip(environments, record_id, facts, strict=True)
        )
        return [float(i % 2) for i in range(len(record_id))]

    arguments = GRPOConfig(
        output_dir=str(tmp_path), max_steps=1, per_device_train_batch_size=4, num_generations=4, max_completion_length=4, use_cpu=True,
        bf16=False, report_to="none", save_strategy="no", disable_tqdm=True, logging_strategy="no", gradient_checkpointing=False,
    )  # fmt: skip
    trainer = GRPOTrainer(
        copy.deepcopy(tiny_model),
        reward,
        arguments,
        Dataset.from_list(rows),
        processing_class=copy.deepcopy(tokenizer),
        environment_factory=Environment,
    )
    trainer.train()
    assert answered == [True] * 4
    assert len({id(environment) for environment in trainer.environments}) == 4


def test_schemas_describe_both_tools_in_order() -> None:
    functions = [schema["function"] for schema in tool_schemas()]
    assert [function["name"] for function in functions] == sorted(TOOLS)
    for function, parameter in zip(functions, ("expression", "record_id"), strict=True):
        assert function["description"]
        assert function["parameters"]["required"] == [parameter]
        assert function["parameters"]["properties"][parameter]["type"] == "string"
        assert function["parameters"]["properties"][parameter]["description"]


def test_reset_takes_a_dataset_row_and_forgets_the_last_episode() -> None:
    environment = Environment()
    environment.reset(
        prompt=[], record_id="AAAAA", facts=json.dumps({"menge": 2, "einzelpreis": 3}), unused=1
    )
    assert json.loads(environment.lookup("AAAAA")) == {"menge": 2, "einzelpreis": 3}
    environment.reset(**ROW)
    assert environment.lookup("AAAAA").startswith("Fehler")
    assert json.loads(environment.lookup("LNFWW")) == FACTS


def test_reset_copies_the_facts() -> None:
    facts = dict(FACTS)
    environment = Environment()
    environment.reset(record_id="LNFWW", facts=facts)
    facts["menge"] = 0
    assert json.loads(environment.lookup("LNFWW")) == FACTS


@pytest.mark.parametrize(
    ("request_", "error", "observation"),
    [
        (Request("lookup", {"record_id": "LNFWW"}), None, json.dumps(FACTS)),
        (Request("calculator", {"expression": "7 * 59"}), None, "413"),
        (Request("lookup", {"record_id": "LNFWX"}), "wrong_id", "Fehler: unbekannte Kennung"),
        (Request("lookup", {"record_id": "lnfww"}), "wrong_id", "Fehler: unbekannte Kennung"),
        (
            Request("lookup", {"record_id": None}),
            "wrong_argument_type",
            "Fehler: record_id muss ein Text sein",
        ),
        (
            Request("lookup", {"record_id": 7}),
            "wrong_argument_type",
            "Fehler: record_id muss ein Text sein",
        ),
        (
            Request("lookup", {}),
            "wrong_arguments",
            "Fehler: lookup braucht genau das Argument record_id",
        ),
        (
            Request("lookup", {"id": "LNFWW"}),
            "wrong_arguments",
            "Fehler: lookup braucht genau das Argument record_id",
        ),
        (
            Request("lookup", {"record_id": "LNFWW", "x": 1}),
            "wrong_arguments",
            "Fehler: lookup braucht genau das Argument record_id",
        ),
        (
            Request("calculator", {"expression": 413}),
            "wrong_argument_type",
            "Fehler: expression muss ein Text sein",
        ),
        (
            Request("calculator", {"expression": None}),
            "wrong_argument_type",
            "Fehler: expression muss ein Text sein",
        ),
        (Request("calculator", {"expression": "7 *"}), "refused_expression", "Fehler: "),
        (
            Request("calculator", {"record_id": "LNFWW"}),
            "wrong_arguments",
            "Fehler: calculator braucht genau das Argument expression",
        ),
        (Request("reset", {"record_id": "AAAAA"}), "unknown_tool", "Fehler: unbekanntes Werkzeug"),
        (
            Request("_refuse", {"kind": "x", "reason": "y"}),
            "unknown_tool",
            "Fehler: unbekanntes Werkzeug",
        ),
        (Request("Lookup", {"record_id": "LNFWW"}), "unknown_tool", "Fehler: unbekanntes Werkzeug"),
        (Request("reset", {"facts": None}), "unknown_tool", "Fehler: unbekanntes Werkzeug"),
        *((Request(error=kind), kind, f"Fehler: {REASONS[kind]}") for kind in REASONS),
        (
            Request(error="wrong_keys", reason="Aufruf braucht name"),
            "wrong_keys",
            "Fehler: Aufruf braucht name",
        ),
        (
            Request("lookup", {"record_id": "LNFWW"}, "second_call"),
            "second_call",
            "Fehler: nur ein Aufruf pro Zug",
        ),
    ],
)
def test_every_request_gets_its_observation(
    environment: Environment, request_: Request, error: str | None, observation: str
) -> None:
    call = run_call(environment, request_, turn=2)
    assert (call.turn, call.name, call.arguments, call.error) == (
        2,
        request_.name,
        request_.arguments,
        error,
    )
    assert call.observation.startswith(observation)
    assert call.retained


@given(st.sampled_from([*TOOLS, "reset", "__init__", ""]), ARGUMENTS)
def test_no_call_raises_or_leaks_a_fact(name: str, arguments: dict[str, object]) -> None:
    environment = Environment()
    environment.reset(record_id="LNFWW", facts={"menge": 7717, "einzelpreis": 5953})
    call = run_call(environment, Request(name, arguments), 0)
    assert (call.error is None) == (not call.observation.startswith("Fehler: "))
    assert "7717" not in call.observation or call.arguments != {"record_id": "LNFWW"}
    assert environment.lookup("LNFWW") == json.dumps({"menge": 7717, "einzelpreis": 5953})


def lookup(turn: int = 0, **changes: object) -> Call:
    return replace(
        Call(turn, "lookup", {"record_id": "LNFWW"}, observation="", error=None, retained=True),
        **changes,
    )


def calculator(turn: int = 1, expression: str = "7 * 59", **changes: object) -> Call:
    return lookup(turn, name="calculator", arguments={"expression": expression}, **changes)


def strict(*calls: Call, answer: int | None = 413) -> bool:
    return judge(calls, FACTS, 413, answer, "answer", False, RULES).strict


def test_judge_wants_lookup_then_product_then_answer() -> None:
    """tests/tasks/test_success.py has the rules beside this core."""
    assert strict(lookup(), calculator())
    assert strict(lookup(), calculator(expression="59*7"))
    assert not strict(lookup(), calculator(), answer=412)
    assert not strict(lookup())
    assert not strict(calculator(0), lookup(1))
    assert not strict(lookup(), calculator(0)), (
        "the values were not known within the turn that asked for them"
    )
    assert not strict(lookup(), calculator(expression="413"))


def test_every_kind_of_error_has_one_text_and_costs_the_same() -> None:
    """Kinds that are not in `REASONS` get their text where they arise. No two texts are the same; none holds a control token or a digit."""
    kinds = set(get_args(ErrorKind))
    assert kinds - REASONS.keys() == {
        "wrong_keys",
        "wrong_arguments",
        "wrong_argument_type",
        "wrong_id",
        "refused_expression",
    }
    assert len(set(REASONS.values())) == len(REASONS)
    assert not [text for text in REASONS.values() if re.search(r"[<>|\d]", text)]
    for kind in kinds:
        assert (
            judge([lookup(0, error=kind)], FACTS, 413, None, "malformed", False, RULES).tool_errors
            == 1
        )


def test_judge_counts_every_error_once() -> None:
    calls = [
        lookup(0, error="wrong_id"),
        lookup(1),
        lookup(1, error="second_call"),
        calculator(2),
        calculator(3, error="invalid_json", retained=False),
    ]
    outcome = judge(calls, FACTS, 413, 413, "answer", False, RULES)
    assert (outcome.tool_errors, outcome.lookup, outcome.calculation, outcome.strict) == (
        3,
        True,
        True,
        False,
    )
