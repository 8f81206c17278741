"""The real vLLM beside transformers on the tests' start policy; skipped where vllm is not installed.

On a GPU in bfloat16, else with vLLM's CPU build in float32: `python -m pytest tests/engine/test_vllm_real.py -s`; -s shows what was measured.
"""

import importlib.util
import json
import os
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
os.environ.setdefault(
    "VLLM_CPU_KVCACHE_SPACE", "1"
)  # GiB; the CPU build would take most of the memory
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")

import numpy as np
import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from scipy import stats
from transformers import AutoModelForCausalLM, PreTrainedModel

from agentrl.engine.sampling import truncate
from agentrl.engine.transformers import TransformersEngine
from agentrl.evaluation.agent import episodes, measures
from agentrl.policy.settings import Model
from agentrl.rollout.chat import ChatProtocol, load_tokenizer
from agentrl.rollout.loop import Rollout
from agentrl.rollout.sampler import Engine, Request, Sample
from agentrl.rollout.settings import Decoding
from agentrl.rollout.trajectory import Trajectory
from agentrl.study.config import Study, validate_study
from agentrl.study.strictyaml import read_yaml
from agentrl.tasks.families import Task, generate
from agentrl.training import grpo
from agentrl.training.health import StepRecord, check_ratio
from agentrl.training.reward import random_reward
from agentrl.training.settings import TrainingSettings
from agentrl.verify.replay import replay

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="no vllm installed"),
]

ROOT = Path(__file__).resolve().parents[2]
START = ROOT / "tests/data/start"
PILOT = Decoding(temperature=0.6, top_p=0.95, top_k=20, min_p=0.0, seed=42)
FREE = Decoding(temperature=1.3, top_p=1.0, top_k=0, min_p=0.0, seed=42)
GREEDY = Decoding(temperature=0.0, top_p=0.95, top_k=20, min_p=0.0, seed=42)
GPU = torch.cuda.is_available()
KIND = (
    {"dtype": "bfloat16", "device": "cuda"}
    if GPU
    else {"dtype": "float32", "device": "cpu", "threads": 1}
)
SECTION = Model(start=str(START), engine="vllm", **KIND)
MEAN, LARGEST = (0.1, 2.0) if GPU else (2e-5, 2e-4)
"""Nats allowed between vLLM and a teacher-forced pass. bfloat16 rounds a logit of 20 to the next eighth, in both; float32 sums differ."""
NEAR_TIE = 0.5 if GPU else 1e-2
"""Greedy choices whose lead in logits is smaller may differ between engines."""


def reference() -> PreTrainedModel:
    model = AutoModelForCausalLM.from_pretrained(str(START), dtype=getattr(torch, SECTION.dtype))
    return model.to(SECTION.device).eval()


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return reference()


@pytest.fixture(scope="module")
def policy_chat() -> ChatProtocol:
    return ChatProtocol(load_tokenizer(START))


class Engines:
    """One vLLM for all tests (it takes a minute to start on a GPU), put to each decoding in turn."""

    def __init__(self, chat: ChatProtocol) -> None:
        from agentrl.engine.vllm import Beside, VllmEngine

        self.chat = chat
        self.engine = VllmEngine(
            START, SECTION, PILOT, chat.stop_ids, Beside(rows=32, length=1024, rank=8)
        )

    def under(self, decoding: Decoding, stops: frozenset[int] | None = None) -> Any:
        """The engine as if it had been opened with these settings and no adapter."""
        self.engine.llm.apply_model(lambda model: model.logits_processor._forward_hooks.clear())
        self.engine.decoding, self.engine.adapter = decoding, None
        self.engine.stop_ids = sorted(self.chat.stop_ids if stops is None else stops)
        self.engine.llm.apply_model(self.engine._apply_temperature)
        self.engine.llm.reset_prefix_cache()
        return self.engine


@pytest.fixture(scope="module")
def engines(policy_chat: ChatProtocol) -> Engines:
    sys.modules.pop(
        "agentrl.engine.vllm", None
    )  # another test file may have left it over a stand-in
    return Engines(policy_chat)


@torch.inference_mode()
def forced(model: Any, row: Request, ids: list[int]) -> torch.Tensor:
    """(tokens, vocabulary) float32 logits of a teacher-forced pass over what was sampled."""
    whole = torch.tensor([row.context + ids], device=SECTION.device)
    return model(whole).logits[0, len(row.context) - 1 : -1].float().cpu()


def gap(model: Any, rows: list[Request], samples: list[Sample], temperature: float) -> torch.Tensor:
    """Absolute differences of recorded and teacher-forced log-probabilities, all tokens in one tensor."""
    found = []
    for row, sample in zip(rows, samples, strict=True):
        scores = (forced(model, row, sample.ids) / temperature).log_softmax(-1)[
            range(len(sample.ids)), sample.ids
        ]
        found.append((scores - torch.tensor(sample.logprobs)).abs())
    return torch.cat(found)


def requests(count: int = 6, budget: int = 24) -> list[Request]:
    """Rows of different context, length and budget."""
    rng = torch.Generator().manual_seed(5)
    lengths = [3, 40, 9, 17, 28, 64][:count]
    contexts = [torch.randint(3, 1400, (length,), generator=rng).tolist() for length in lengths]
    return [
        Request(context, budget - 2 * row, ("episode", 42, 0, f"dev-{row:04d}", 0, 0))
        for row, context in enumerate(contexts)
    ]


@pytest.fixture(scope="module")
def micro_config() -> Study:
    return validate_study(read_yaml(ROOT / "config.yaml", ROOT / "tests/micro.yaml"))


@pytest.fixture(scope="module")
def micro_tasks(micro_config: Study) -> list[Task]:
    return generate(micro_config.tasks, "train", micro_config.tasks.splits.train)[:8]


def randomize(adapted: PeftModel, seed: int) -> None:
    """Adapter weights large enough to change what is said."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in adapted.named_parameters():
            if "lora_" in name:
                weight.copy_(torch.randn(weight.shape, generator=generator) * 0.15)


def with_adapter(seed: int) -> PeftModel:
    targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    adapted = get_peft_model(
        reference(), LoraConfig(r=8, lora_alpha=16, target_modules=targets, task_type="CAUSAL_LM")
    )
    randomize(adapted, seed)
    return adapted.eval()


def trained(
    engine: Engine, chat: ChatProtocol, study: Study, tasks: list[Task], work: Path
) -> grpo.Recorder:
    """A short GRPO run over an engine, the micro study's settings."""
    values = {name: getattr(study.training, name) for name in TrainingSettings.model_fields}
    settings = TrainingSettings(
        **values
        | {
            "steps": 3,
            "learning_rate": 2e-2,
            "lora": study.training.lora.model_copy(update={"r": 8}),
        }
    )
    rollout = Rollout(engine, chat, study.protocol)
    recorder = grpo.Recorder(
        rollout, tasks, partial(random_reward, study.reward), "pilot/seed-3", 3, work, settings
    )
    grpo.train(
        grpo.trainer(
            reference(),
            chat.tokenizer,
            recorder,
            settings,
            study.decoding,
            study.protocol.budget,
            SECTION,
        ),
        work,
    )
    return recorder


@pytest.mark.parametrize("decoding", [PILOT, FREE, GREEDY], ids=["pilot", "free", "greedy"])
def test_logprobs_are_the_trainer_s(
    engines: Engines, model: PreTrainedModel, decoding: Decoding
) -> None:
    rows = requests()
    differences = gap(
        model,
        rows,
        engines.under(decoding, frozenset({1499})).generate(rows),
        decoding.temperature or 1.0,
    )
    print(
        f"\n{decoding.temperature}: {len(differences)} tokens, gap mean {differences.mean():.2g}, max {differences.max():.2g} nats"
    )
    assert differences.mean() < MEAN
    assert differences.max() < LARGEST


def test_greedy_ids_are_transformers_up_to_near_ties(
    engines: Engines, model: PreTrainedModel
) -> None:
    rows = requests()
    mine = engines.under(GREEDY).generate(rows)
    theirs = TransformersEngine(model, GREEDY, engines.chat.stop_ids, 0).generate(rows)
    compared = 0
    for row, a, b in zip(rows, mine, theirs, strict=True):
        best = forced(model, row, b.ids).topk(2, dim=-1).values
        close = ((best[:, 0] - best[:, 1]) < NEAR_TIE).nonzero()
        end = int(close[0]) if len(close) else len(b.ids)
        assert a.ids[:end] == b.ids[:end]
        assert end < len(b.ids) or (a.ids, a.finish) == (b.ids, b.finish)
        compared += end
    print(f"\n{compared} of {sum(len(b.ids) for b in theirs)} greedy tokens compared")
    assert compared > 40


def test_a_row_is_the_same_alone_in_any_batch_and_again(engines: Engines) -> None:
    rows = requests()
    engine = engines.under(PILOT)
    together, again = engine.generate(rows), engine.generate(rows[::-1])[::-1]
    alone = [engine.generate([row])[0] for row in rows]
    same = [a.ids == b.ids == c.ids for a, b, c in zip(together, again, alone, strict=True)]
    print(f"\n{sum(same)} of {len(same)} rows the same in three batches")
    assert all(same) or (
        GPU and sum(same) >= len(same) // 2
    )  # bfloat16: batch shape can flip a near tie


def test_prompts_that_do_not_fit_in_one_pass_together_change_no_row(engines: Engines) -> None:
    """vLLM would cut one of them; its sampler then draws for the cut row and turns the row's generator back by a guess."""
    rng = torch.Generator().manual_seed(9)
    rows = [
        Request(
            torch.randint(3, 1400, (700,), generator=rng).tolist(),
            6,
            ("episode", 42, 0, "long", n, 0),
        )
        for n in range(24)
    ]
    engine = engines.under(FREE, frozenset({1499}))
    together = engine.generate(rows)
    alone = [engine.generate([row])[0] for row in rows[8:16]]
    same = [a.ids == b.ids for a, b in zip(together[8:16], alone, strict=True)]
    print(f"\n{sum(same)} of {len(same)} rows the same alone")
    assert all(same) or (GPU and sum(same) >= len(same) // 2)


def test_same_key_same_ids_and_other_key_other_ids(engines: Engines) -> None:
    row = requests(2)[1]
    others = [
        Request(row.context, row.max_tokens, (*row.key[:-2], trial, turn))
        for trial, turn in ((0, 0), (1, 0), (0, 1))
    ]
    first, *rest = engines.under(FREE, frozenset({1499})).generate([row, *others])
    assert first.ids == rest[0].ids
    assert len({tuple(sample.ids) for sample in rest}) == 3


def test_rows_end_by_stop_or_by_their_own_budget(engines: Engines) -> None:
    """Stop ids are taken from what rows say without them: each row is then cut behind the first one, and says the same until there."""
    rows = requests()
    whole = engines.under(FREE, frozenset({1499})).generate(rows)
    assert [(len(sample.ids), sample.finish) for sample in whole] == [
        (row.max_tokens, "length") for row in rows
    ]
    stops = frozenset({whole[0].ids[5], whole[3].ids[8]})
    samples = engines.under(FREE, stops).generate(rows)
    assert {sample.finish for sample in samples} >= {"stop"}
    for row, sample in zip(rows, samples, strict=True):
        assert len(sample.ids) == len(sample.logprobs) <= row.max_tokens
        assert not set(sample.ids[:-1]) & stops
        assert (sample.ids[-1] in stops) == (sample.finish == "stop")
        assert sample.finish == "stop" or len(sample.ids) == row.max_tokens


def test_sampled_ids_are_in_the_truncated_set_and_not_always_the_best(
    engines: Engines, model: PreTrainedModel
) -> None:
    rows = [replace(row, key=(*row.key[:-1], turn)) for row in requests() for turn in range(4)]
    kept, best, total = 0, 0, 0
    for row, sample in zip(
        rows, engines.under(PILOT, frozenset({1499})).generate(rows), strict=True
    ):
        logits = forced(model, row, sample.ids)
        chosen = truncate(logits, PILOT)[range(len(sample.ids)), sample.ids]
        kept, total = kept + int((chosen > 0).sum()), total + len(sample.ids)
        best += int((logits.argmax(-1) == torch.tensor(sample.ids)).sum())
    print(f"\n{kept} of {total} sampled ids inside the truncated set, {best} of them the likeliest")
    assert kept >= total * (0.99 if GPU else 1)
    assert best < total


@pytest.mark.parametrize(
    "decoding", [PILOT, FREE, Decoding(temperature=1.0, top_p=0.8, top_k=6, min_p=0.0, seed=0)]
)
def test_choices_follow_the_truncated_probabilities(
    engines: Engines, model: PreTrainedModel, decoding: Decoding
) -> None:
    """Chi-square of 3,000 rows that differ in nothing but their key."""
    draws = 3000
    rng = torch.Generator().manual_seed(8)
    contexts = [torch.randint(3, 1400, (6,), generator=rng).tolist() for _ in range(40)]
    widest = [
        truncate(forced(model, Request(context, 1, ()), [0]), decoding)[0].square().sum()
        for context in contexts
    ]
    context = contexts[int(torch.stack(widest).argmin())]
    rows = [Request(context, 1, ("episode", 42, 0, "dev-0001", draw, 0)) for draw in range(draws)]
    chosen = torch.tensor(
        [sample.ids[0] for sample in engines.under(decoding, frozenset()).generate(rows)]
    )
    expected = truncate(forced(model, rows[0], [0]), decoding)[0].double() * draws
    observed = torch.bincount(chosen, minlength=len(expected)).double()
    common = expected >= 5  # the rest in one bin
    seen = torch.cat([observed[common], observed[~common].sum()[None]])
    due = torch.cat([expected[common], expected[~common].sum()[None]])
    seen, due = seen[due > 0], due[due > 0]
    found = stats.chisquare(seen.numpy(), (due * seen.sum() / due.sum()).numpy())
    print(f"\n{len(due)} bins, chi-square {found.statistic:.1f}, p {found.pvalue:.3f}")
    assert found.pvalue > 1e-4


def test_agent_episodes_under_both_engines(
    engines: Engines,
    model: PreTrainedModel,
    policy_chat: ChatProtocol,
    micro_config: Study,
    micro_tasks: list[Task],
) -> None:
    """Same prompts, parser, budget; every record follows from its ids; greedy episodes are the same record."""
    for decoding, trials in ((GREEDY, 1), (micro_config.decoding, 4)):
        played: list[list[Trajectory]] = []
        for engine in (
            engines.under(decoding),
            TransformersEngine(model, decoding, policy_chat.stop_ids, 0),
        ):
            rollout = Rollout(engine, policy_chat, micro_config.protocol)
            played.append(
                [
                    t
                    for batch in episodes(rollout, micro_tasks, trials, 8, "baseline", 0, 42)
                    for t in batch
                ]
            )
        for mine, theirs in zip(*played, strict=True):
            assert (mine.key, mine.prompt_ids, mine.engine, theirs.engine) == (
                theirs.key,
                theirs.prompt_ids,
                "vllm",
                "transformers",
            )
            task = next(task for task in micro_tasks if task.id == mine.key.task)
            assert replay(mine.to_json(), task, policy_chat, micro_config.protocol).mismatches == []
            assert len(mine.completion_ids) <= micro_config.protocol.budget
        print("\n" + "\n".join(f"{batch[0].engine}: {measures(batch)}" for batch in played))
        if not GPU and not decoding.temperature:
            assert [t.completion_ids for t in played[0]] == [t.completion_ids for t in played[1]]
            assert measures(played[0]) == measures(played[1])


def test_both_engines_succeed_equally_often(
    engines: Engines,
    model: PreTrainedModel,
    policy_chat: ChatProtocol,
    micro_config: Study,
    micro_tasks: list[Task],
) -> None:
    """Strict successes, task by task: rows are random streams of two kinds, so episodes differ, rates must not."""
    trials, wins = 100, []
    for engine in (engines.under(PILOT), TransformersEngine(model, PILOT, policy_chat.stop_ids, 0)):
        rollout = Rollout(engine, policy_chat, micro_config.protocol)
        played = [
            t
            for batch in episodes(rollout, micro_tasks, trials, 64, "baseline", 0, 42)
            for t in batch
        ]
        wins.append(
            [sum(t.outcome.strict for t in played if t.key.task == task.id) for task in micro_tasks]
        )
    mine, theirs = map(np.array, wins)
    pooled = (mine + theirs) / (2 * trials)
    spread = np.sqrt(2 * trials * (pooled * (1 - pooled)).sum())
    chance = 2 * stats.norm.sf(abs(mine.sum() - theirs.sum()) / spread)
    print(
        f"\nstrict of {trials * len(micro_tasks)}: vllm {mine.sum()}, transformers {theirs.sum()}, p {chance:.3g}"
    )
    assert chance > 1e-3


def test_after_a_sync_it_samples_from_the_adapter_and_before_it_does_not(engines: Engines) -> None:
    rows, engine = requests(), engines.under(PILOT, frozenset({1499}))
    adapted = with_adapter(1)
    before = gap(adapted, rows, engine.generate(rows), PILOT.temperature)
    gaps = []
    for seed in (1, 2):  # the second replaces the first, and what the prefix cache knows of it
        randomize(adapted, seed)
        engine.follow(adapted)
        gaps.append(gap(adapted, rows, engine.generate(rows), PILOT.temperature))
    print(
        f"\nnats, max: before {before.max():.2g}, after {gaps[0].max():.2g}, after the next {gaps[1].max():.2g}"
    )
    assert before.mean() > 1
    assert max(g.mean() for g in gaps) < MEAN
    assert max(g.max() for g in gaps) < LARGEST


def test_greedy_continuations_follow_the_adapter(engines: Engines) -> None:
    rows, adapted = requests(), with_adapter(3)
    engine = engines.under(GREEDY, frozenset({1499}))
    plain = engine.generate(rows)
    engine.follow(adapted)
    mine = engine.generate(rows)
    theirs = TransformersEngine(adapted, GREEDY, [1499], 0).generate(rows)
    assert [s.ids for s in mine] != [s.ids for s in plain]
    for row, a, b in zip(rows, mine, theirs, strict=True):
        best = forced(adapted, row, b.ids).topk(2, dim=-1).values
        close = ((best[:, 0] - best[:, 1]) < NEAR_TIE).nonzero()
        end = int(close[0]) if len(close) else len(b.ids)
        assert a.ids[:end] == b.ids[:end]


def test_training_samples_from_the_current_policy(
    engines: Engines,
    policy_chat: ChatProtocol,
    micro_config: Study,
    micro_tasks: list[Task],
    tmp_path: Path,
) -> None:
    """Three GRPO steps at a high learning rate: the gap stays where it began although the policy has moved."""
    made = trained(
        engines.under(micro_config.decoding), policy_chat, micro_config, micro_tasks, tmp_path
    )
    steps = [
        StepRecord(**json.loads(line)) for line in (tmp_path / grpo.STEPS).read_text().splitlines()
    ]
    print(
        "\n"
        + "\n".join(
            f"step {s.step}: KL {s.kl:.3g}, gap {s.gap_mean:.2g} / {s.gap_max:.2g}, ratio {s.ratio_mean}"
            for s in steps
        )
    )
    assert steps[-1].kl > 0.05  # a sampler that stayed behind would be some tenths of a nat off
    for step in steps:
        check_ratio(step)
        assert step.gap_mean < MEAN
    assert {t.engine for t in made.batch} == {"vllm"}
