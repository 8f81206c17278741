"""What tests share: the demo study, its tokenizer and protocol, small random models, Qwen3's real tokenizer, and scripted episodes."""

import fcntl
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ["PIPELINE_PLAN"] = (
    "all"  # what tests read of a plan is Snakemake's own text; `test_plan_view.py` tests ours
)

import micro_study
import pytest
import qwen3_tokenizer
import torch
from hypothesis import settings
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from agentrl.demo.policy import make_tokenizer
from agentrl.demo.settings import DemoBase
from agentrl.engine.scripted import ScriptedEngine
from agentrl.evidence.section import validate
from agentrl.rollout.chat import ChatProtocol
from agentrl.rollout.loop import Rollout
from agentrl.rollout.trajectory import Key, Trajectory
from agentrl.study.config import Study, validate_study
from agentrl.study.sections import sections
from agentrl.study.strictyaml import read_yaml
from agentrl.tasks.families import Task, generate
from agentrl.training.expert import encode_turn

MAKES_ITS_OWN = frozenset({"chosen", "second", "demo_start"})
"""Fixtures that run a study, or train a policy, beside the one that all tests share."""

torch.set_num_threads(1)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # a shell's background jobs ignore Ctrl-C, and what they start inherits that
settings.register_profile("study", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("study")

ROOT = Path(__file__).resolve().parents[1]
QWEN3_VOCABULARY = 151936
"""Rows of Qwen3's embedding; the tokenizer uses the first 151,669."""

Say = Callable[..., Trajectory]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What asks for a study of its own is heavy."""
    for item in items:
        if MAKES_ITS_OWN & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.heavy)


@pytest.fixture(scope="session")
def study() -> Study:
    """The demo study, validated."""
    return validate_study(read_yaml(ROOT / "config.yaml", ROOT / "profiles/demo/study.yaml"))


@pytest.fixture(scope="session")
def tokenizer(study: Study) -> PreTrainedTokenizerFast:
    """The demo policy's tokenizer."""
    return make_tokenizer(validate(sections(study)["demo-base"], DemoBase))


@pytest.fixture(scope="session")
def chat(tokenizer: PreTrainedTokenizerFast) -> ChatProtocol:
    """The protocol over the demo tokenizer."""
    return ChatProtocol(tokenizer)


@pytest.fixture(scope="session")
def qwen_tokenizer(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> PreTrainedTokenizerFast:
    """Qwen3's own tokenizer, rebuilt offline; skipped where its sources are not installed."""
    try:
        cache = getattr(request.config, "cache", None)  # `-p no:cacheprovider` leaves none
        folder = (
            cache.mkdir("qwen3-tokenizer") if cache else tmp_path_factory.mktemp("qwen3-tokenizer")
        )
        return qwen3_tokenizer.build(Path(folder))
    except qwen3_tokenizer.MissingSourceError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def qwen_chat(qwen_tokenizer: PreTrainedTokenizerFast) -> ChatProtocol:
    """The protocol over Qwen3's own tokenizer."""
    return ChatProtocol(qwen_tokenizer)


@pytest.fixture(scope="session")
def tiny_model(tokenizer: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
    """A random Qwen3 over the demo vocabulary, float32; its weights are large so that what it says depends on the context."""
    return random_qwen3(len(tokenizer), scale=0.4)


@pytest.fixture(scope="session")
def tiny_qwen3(qwen_tokenizer: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
    """A random Qwen3 with the real vocabulary, padding rows included."""
    assert len(qwen_tokenizer) <= QWEN3_VOCABULARY
    return random_qwen3(QWEN3_VOCABULARY, scale=0.4)


def random_qwen3(vocabulary: int, scale: float) -> Qwen3ForCausalLM:
    """A two-layer Qwen3 of width 32 with weights from a fixed seed."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = Qwen3Config(
            vocab_size=vocabulary, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, head_dim=16,
            intermediate_size=64, max_position_embeddings=2048, initializer_range=scale, tie_word_embeddings=False,
        )  # fmt: skip
        return Qwen3ForCausalLM(config).eval()


@pytest.fixture(scope="session")
def tasks(study: Study) -> list[Task]:
    """The demo's development tasks."""
    return generate(study.tasks, "dev", study.tasks.splits.dev)


@pytest.fixture(scope="session")
def task(tasks: list[Task]) -> Task:
    """One task with two different facts."""
    return next(task for task in tasks if len(set(task.facts.values())) == 2)


@pytest.fixture(scope="session")
def say(study: Study, chat: ChatProtocol) -> Say:
    """Play one episode whose assistant says the given turns.

    A turn is its text, to which the end-of-turn token is added, or its token ids as they are. Keywords change `protocol` values;
    `over` is the protocol of another tokenizer.
    """

    def play(
        task: Task, *turns: str | list[int], over: ChatProtocol = chat, **changes: object
    ) -> Trajectory:
        ids = [encode_turn(over, turn) if isinstance(turn, str) else turn for turn in turns]
        engine = ScriptedEngine(lambda request: ids[int(request.key[-1])], over.stop_ids)
        rollout = Rollout(
            engine, over, study.protocol.model_copy(update={"budget": 2000} | changes)
        )
        return rollout.play([task], [Key("baseline", 0, task.split, task.id, 0, 42)])[0]

    return play


@pytest.fixture(scope="session")
def micro(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished micro study in a copy of the project. Tests that change it work on a copy of their own.

    Made once, also where several workers (`-n`) ask for it.
    """
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "micro"
    with open(folder.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "finished").exists():
            shutil.rmtree(folder, ignore_errors=True)
            done = micro_study.snakemake(micro_study.copy_project(folder), "--show-failed-logs")
            assert done.returncode == 0, done.stdout[-6000:]
            (folder / "finished").touch()
    return folder
