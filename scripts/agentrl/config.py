"""The study's configuration as validated models: unknown keys, wrong types and impossible combinations are refused before any job.

`strictyaml` reads the files, `sections` makes what jobs read.
"""

import json
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model, model_validator

from agentrl.tasks import SPLITS, check_family, check_share

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$")]
Positive = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=0, le=2**32 - 1)]
Share = Annotated[float, Field(ge=0, le=1)]
Rate = Annotated[float, Field(gt=0)]


class ConfigError(ValueError):
    """The configuration cannot be used; the message says which key, what was found, what was expected."""


class Section(BaseModel):
    """Base of every section: strict types, no unknown keys, immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    @classmethod
    def part(cls, content: Mapping[str, Any]) -> dict[str, Any]:
        """Of a larger section's plain data, what this one has too."""
        return {name: content[name] for name in cls.model_fields}


class Model(Section):
    """The start policy and how every stage loads it."""

    start: str | None
    """Local folder or hub id of the German SFT checkpoint; null where `demo_policy` makes one."""
    revision: str | None = None
    """Pinned hub commit; must be null for a local folder."""
    dtype: Literal["float32", "bfloat16"]
    device: Literal["cpu", "cuda"]
    engine: Literal["auto", "vllm", "transformers"] = "auto"
    """What samples. `auto`: the fastest that can serve this policy here (`engine.selection`)."""
    threads: Positive | None = None
    """CPU threads of one process; null leaves torch's default."""


class Range(Section):
    """Inclusive range of a private fact."""

    min: Positive
    max: Positive

    @model_validator(mode="after")
    def _ordered(self) -> "Range":
        if self.min > self.max:
            raise ValueError(f"min {self.min} is above max {self.max}")
        return self


class Splits(Section):
    """Tasks per split: `tasks.SPLITS`, each at most its share of the pairs (`tasks.SHARES`)."""

    train: Positive
    dev: Positive
    test: Positive


class BaseTasks(Section):
    """What tasks of no split depend on."""

    family: Name
    scaffold: Name
    """How much of the solution the prompt gives away: a level of the family (`tasks.Family.scaffolds`)."""
    quantity: Range
    unit_price: Range
    """Whole euros."""


class TaskSplit(BaseTasks):
    """One split of the task set, as its job reads it."""

    seed: Seed
    count: Positive


class Tasks(BaseTasks):
    """The frozen task set."""

    seed: Seed
    splits: Splits

    @model_validator(mode="after")
    def _known_family_and_sufficient_shares(self) -> "Tasks":
        check_family(self)
        for split in SPLITS:
            check_share(self, split, getattr(self.splits, split))
        return self


Rule = Literal["breaks", "allowed"]


class Success(Section):
    """Whether each departure from the straight course breaks strict success.

    No key can do away with its core: a retained lookup, in a later turn the product of the two retrieved values, the right final answer.
    A departure costs no reward by itself; only tool errors do (`reward.tool_error`), and milestones count once.
    """

    late_calculation: Rule
    """Another call succeeded between the first lookup and the product: the next successful call was not the calculation."""
    repeated_lookup: Rule
    """The lookup succeeded more than once."""
    extra_calculation: Rule
    """The calculator succeeded before the first lookup, or again behind the product."""
    failed_call: Rule
    """A call failed between the first lookup and the product; a second call in one turn is another matter."""
    second_call: Rule
    """A turn called twice, anywhere in the episode."""
    invented_text: Rule
    """A sampled turn contains text that only the environment may write."""


class Protocol(Section):
    """One episode: what ends it and what breaks strict success."""

    budget: Positive
    """Tokens of the stream after the prompt, observations and framing included."""
    max_tool_iterations: Positive
    """Turns that may call a tool; one more assistant turn may follow to answer."""
    success: Success


class Decoding(Section):
    """Sampling of one token: temperature, then top-k, top-p, min-p. `temperature: 0` is greedy."""

    temperature: Annotated[float, Field(ge=0)]
    top_p: Annotated[float, Field(gt=0, le=1)]
    top_k: Annotated[int, Field(ge=0)]
    """0 keeps the whole vocabulary."""
    min_p: Share
    seed: Seed


class Reward(Section):
    """Milestone shaping of the training reward; clipped to [0, 1]; never mixed with success."""

    lookup: Share
    calculation: Share
    strict: Share
    tool_error: Share
    """Subtracted once per tool error."""


class Lora(Section):
    """PEFT LoRA of the trained policy. Biases stay as they are (`adapter.BIAS`)."""

    r: Positive
    alpha: Positive
    targets: Annotated[tuple[str, ...], Field(min_length=1)]
    dropout: Annotated[float, Field(ge=0, lt=1)]
    """Of the adapter's input, while training only."""
    init: Literal["kaiming", "gaussian"]
    """Of the projection down; the projection up begins at 0 either way, so that training begins at the start policy. Initialisations
    that change the weights below the adapter are not offered: the KL term's reference is the model with its adapter off."""


class Clip(Section):
    """How far the ratio to the sampling policy may go: `1 - low` to `1 + high`."""

    low: Annotated[float, Field(gt=0, lt=1)]
    high: Rate


class Optimizer(Section):
    """AdamW of PyTorch. The weight decay spares norms and biases (`transformers.Trainer`)."""

    name: Literal["adamw_torch", "adamw_torch_fused"]
    """One algorithm, two implementations that round differently."""
    beta1: Annotated[float, Field(ge=0, lt=1)]
    beta2: Annotated[float, Field(ge=0, lt=1)]
    epsilon: Rate
    weight_decay: Annotated[float, Field(ge=0)]


class TrainingSettings(Section):
    """GRPO. One optimizer step consumes `batch_size` episodes: `batch_size / group_size` tasks."""

    steps: Positive
    group_size: Annotated[int, Field(ge=2)]
    batch_size: Positive
    learning_rate: Rate
    lr_schedule: Literal["linear", "constant", "cosine"]
    warmup_steps: Annotated[int, Field(ge=0)]
    """Optimizer steps in which the learning rate rises from 0."""
    kl: Annotated[float, Field(ge=0)]
    """Weight of the KL penalty against the start policy (adapter off)."""
    kl_estimator: Literal["k3", "k3_unbiased"]
    """What stands for the KL divergence of one sampled token, with d = log p(reference) - log p(policy): `k3` is exp(d) - d - 1 and its
    gradient as it stands; `k3_unbiased` multiplies it by the ratio to the sampling policy, whose value is 1 on-policy but whose gradient
    makes the whole that of the reverse KL (TRL's `use_bias_correction_kl`)."""
    max_grad_norm: Rate
    loss_type: Literal["dapo", "grpo", "dr_grpo", "bnpo"]
    scale_rewards: Literal["group", "none"]
    importance_level: Literal["token", "sequence"]
    """Whether ratios to the sampling policy are of tokens, or one of the sequence (its geometric mean)."""
    clip: Clip
    mask_truncated: bool
    """Whether episodes whose last token ends no turn are left out of the loss."""
    entropy_quantile: Annotated[float, Field(gt=0, le=1)]
    """Share of the tokens, those of the highest entropy, that the reward's gradient goes through; 1 takes all."""
    optimizer: Optimizer
    lora: Lora
    gradient_checkpointing: bool
    checkpoint_every: Positive
    """Steps between resumable checkpoints in the work folder."""

    @model_validator(mode="after")
    def _groups_fill_batch(self) -> "TrainingSettings":
        if self.batch_size % self.group_size:
            raise ValueError(f"group_size {self.group_size} does not divide batch_size {self.batch_size}")
        return self

    @property
    def tasks_per_step(self) -> int:
        """Groups in one optimizer step."""
        return self.batch_size // self.group_size


class Training(TrainingSettings):
    """The training of every arm, once per seed."""

    seeds: Annotated[tuple[Seed, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _distinct_seeds(self) -> "Training":
        if len(set(self.seeds)) != len(self.seeds):
            raise ValueError(f"seeds {list(self.seeds)} repeat")
        return self


def _partial(model: type[Section]) -> type[Section]:
    """The same keys with the same checks, each of them optional: null or absent inherits."""
    hints = get_type_hints(model, include_extras=True)
    fields: dict[str, Any] = {}
    for name in model.model_fields:
        inner = hints[name]
        fields[name] = ((_partial(inner) if isinstance(inner, type) and issubclass(inner, Section) else inner) | None, None)
    return create_model(f"{model.__name__}Overrides", __base__=Section, __doc__=f"Some keys of `{model.__name__}`.", **fields)


TrainingOverrides = _partial(TrainingSettings)


class Warmup(Section):
    """Supervised training of an arm's LoRA on expert trajectories of training tasks, before GRPO."""

    steps: Positive
    batch_size: Positive
    learning_rate: Rate


class Arm(Section):
    """One way to train, compared against the baseline: its reward, what it changes of `training`, and whether it is warmed up."""

    reward: Literal["shaped", "random", "binary"]
    """Milestone shaping, a fair coin (the placebo), or strict success as 0 or 1."""
    training: TrainingOverrides = TrainingOverrides()  # type: ignore[valid-type]
    warmup: Warmup | None = None

    def content(self) -> dict[str, Any]:
        """Plain data with only those overrides that are set: an arm's section and its record in the training manifest."""
        warmup = None if self.warmup is None else self.warmup.model_dump(mode="json")
        return {"reward": self.reward, "training": self.training.model_dump(mode="json", exclude_none=True), "warmup": warmup}

    def settings(self, base: TrainingSettings) -> TrainingSettings:
        """The effective settings: `base` below this arm's overrides. Raises `ConfigError` where they do not go together."""
        merged = merge(TrainingSettings.part(base.model_dump(mode="json")), self.content()["training"])
        return validate(merged, TrainingSettings, "training with the arm's overrides")


class PreflightGroups(Section):
    """Before training: groups of training tasks sampled from the start policy."""

    groups: Positive


class Preflight(PreflightGroups):
    """Section `preflight`, as its job reads it."""

    group_size: Annotated[int, Field(ge=2)]
    """The largest group of any arm: a smaller one is a part of it."""


class EvaluationShape(Section):
    """Agent evaluation, the same for every policy."""

    trials: Positive
    batch_size: Positive


class Evaluation(EvaluationShape):
    """Which splits are evaluated, and how."""

    splits: Annotated[tuple[Literal["dev", "test"], ...], Field(min_length=1)]
    select: Literal["dev"] | None = None
    """`dev`: arms are compared on dev, and test is evaluated for the start policy and the best of them only."""

    @model_validator(mode="after")
    def _both_splits(self) -> "Evaluation":
        if self.select is not None and set(self.splits) != {"dev", "test"}:
            raise ValueError(f"select: {self.select} chooses on dev and judges on test; splits must name both, found {list(self.splits)}")
        return self


class RetentionPrompt(Section):
    """The frozen prompt of the retention items."""

    system: str
    prompt: str
    """User message; `{question}` is replaced by the item's question."""

    @model_validator(mode="after")
    def _one_question(self) -> "RetentionPrompt":
        if (found := self.prompt.count("{question}")) != 1:
            raise ValueError(f"prompt must contain {{question}} exactly once, found {found} times in {self.prompt!r}")
        return self


class Retention(RetentionPrompt):
    """Mathematics without tools: frozen items, own prompt, own token limit and decoding."""

    source: Literal["mgsm", "word-problems"]
    path: str | None = None
    """Local copy of mgsm_de.tsv; null fetches it once from the pinned commit. Both are checked by sha256."""
    items: Positive
    ids: tuple[str, ...] | None = None
    """The frozen items themselves; null chooses `items` of them by `seed`."""
    seed: Seed
    max_tokens: Positive
    batch_size: Positive
    decoding: Decoding

    @model_validator(mode="after")
    def _consistent(self) -> "Retention":
        if self.ids is not None and len(self.ids) != self.items:
            raise ValueError(f"ids names {len(self.ids)} items, items says {self.items}")
        if self.ids is not None and len(set(self.ids)) != len(self.ids):
            raise ValueError(f"ids repeat: {sorted({i for i in self.ids if self.ids.count(i) > 1})}")
        return self


class RetentionChoice(Retention):
    """Retention, and a file that names the items. The file is a rule's input, so the section that jobs read does not hold its path."""

    ids_from: str | None = None
    """Text file with one item id a line, or a recorded baseline (`*.json`), whose items are taken in its order."""

    @model_validator(mode="after")
    def _one_choice(self) -> "RetentionChoice":
        if self.ids is not None and self.ids_from is not None:
            raise ValueError(f"ids and ids_from ({self.ids_from!r}) both choose the items; set one of them to null")
        return self


class Baselines(Section):
    """Evaluations of the start policy that are taken over, not run. No job reads this: the files are inputs of rules."""

    agent: str | None = None
    """Folder of an earlier study, e.g. results/earlier."""
    retention: str | None = None
    """The same, or a file in the format of `agentrl/recorded.py`; it ends in .json."""

    @property
    def recorded_file(self) -> str | None:
        """The retention baseline in the documented format, if that is what is configured."""
        return self.retention if self.retention is not None and is_recorded(self.retention) else None

    @property
    def earlier(self) -> dict[str, str]:
        """`agent` and `retention`, as far as they come from an earlier study, -> its folder."""
        found = {"agent": self.agent, "retention": None if self.recorded_file else self.retention}
        return {measure: str(Path(folder)) for measure, folder in found.items() if folder is not None}


def is_recorded(path: str) -> bool:
    """Whether a configured path names a recorded retention baseline; told by its name, so that a plan does not depend on what exists."""
    return path.endswith(".json")


class Statistics(Section):
    """How policies are compared."""

    confidence: Annotated[float, Field(gt=0.5, lt=1)]
    alpha: Annotated[float, Field(gt=0, lt=0.5)]
    seed: Seed
    margin: Annotated[float, Field(gt=0, lt=1)]
    """Loss of retention that is tolerated, as a fraction: the non-inferiority bound must lie above its negative."""
    seeds_for_verdict: Annotated[int, Field(ge=5)]
    """Fewest training seeds with which an arm may be called improved; below 5 the interval is only descriptive (`inference.py`)."""


class PlanSettings(Section):
    """What a study should be able to find, and what is assumed before anything is known."""

    wanted_difference: Annotated[float, Field(gt=0, lt=1)]
    """Gain of agent success, as a fraction."""
    power: Annotated[float, Field(gt=0, lt=1)]
    discordance: Share
    """Share of items on which one trial of each of two equally good policies differs, both drawn from the same random stream."""
    repeatable: Share
    """Share of that variance which further trials do not average away."""
    seed_sd: Annotated[float, Field(ge=0, lt=1)]
    """Standard deviation of the true mean difference between training seeds."""
    gate_discordances: Annotated[tuple[Share, ...], Field(min_length=1)]
    """Plausible shares of retention items on which an equally good policy differs under shared streams, for the gate's false alarms."""
    refuse_weak: bool
    """Whether a design that lacks the wanted power is refused before training."""


class Plan(PlanSettings):
    """Section `plan`: the settings and the configured design."""

    items: Positive
    """Tasks of the split that is judged: test, else dev."""
    trials: Positive
    seeds: Positive
    arms: Annotated[int, Field(ge=0)]
    """Arms that are judged, none of them a placebo: Holm corrects over them."""
    retention_items: Positive
    alpha: Annotated[float, Field(gt=0, lt=0.5)]


class Architecture(Section):
    """Shape of the demo policy, a Qwen3 of its own."""

    hidden: Positive
    layers: Positive
    heads: Positive
    kv_heads: Positive
    head_dim: Positive
    mlp: Positive
    vocabulary: Annotated[int, Field(ge=300)]


class Mixture(Section):
    """Shares of demonstrations that depart from the expert, so that the policy has something to learn."""

    guess: Share
    """Answers after the lookup without calculating."""
    bare_result: Share
    """Calls the calculator with a number instead of the product."""
    wrong_formula: Share
    """Adds instead of multiplying."""
    free_answer: Share
    """Answers in a sentence, without the answer tag."""
    wrong_sum: Share
    """Word problems whose demonstrated result is off."""


class Drill(Section):
    """Copying drills before the base stage."""

    steps: Positive
    batch_size: Positive
    learning_rate: Rate


class DemoStage(Section):
    """One supervised stage of the demo policy."""

    seed: Seed
    steps: Positive
    batch_size: Positive
    learning_rate: Rate
    word_problems: Share
    """Share of word problems among the examples."""
    equations: Share
    """Share of bare equations."""
    tails: Share
    """Share of trajectories without their prompt; what remains are whole trajectories."""
    mixture: Mixture


class DemoPolicy(Section):
    """Recipe of the policy that the pipeline makes itself, so that the whole study runs on a laptop."""

    threads: Positive
    """CPU threads of the two supervised stages: nothing else runs beside them."""
    architecture: Architecture
    drill: Drill
    base: DemoStage
    sft: DemoStage
    sft_lora: Lora


class DemoJob(Section):
    """What both jobs that make the demo policy need beside their own recipe."""

    threads: Positive
    tasks: BaseTasks
    protocol: Protocol
    retention: RetentionPrompt
    stage: DemoStage


class DemoBase(DemoJob):
    """Section `demo-base`: the job that trains tokenizer and base."""

    architecture: Architecture
    drill: Drill


class DemoSft(DemoJob):
    """Section `demo-sft`: the job that makes the start policy from the base."""

    lora: Lora


class Study(Section):
    """One study. `results/{study}/` holds everything it makes."""

    study: Name
    finished: Literal["replace", "refuse"]
    """Whether a run may make evidence of a finished study anew (`agentrl.finished`). No job reads this."""
    model: Model
    tasks: Tasks
    protocol: Protocol
    decoding: Decoding
    reward: Reward
    training: Training
    arms: Annotated[dict[Name, Arm], Field(min_length=1)]
    preflight: PreflightGroups
    evaluation: Evaluation
    retention: RetentionChoice
    baselines: Baselines = Baselines()
    statistics: Statistics
    plan: PlanSettings
    demo_policy: DemoPolicy | None = None

    @property
    def placebos(self) -> list[str]:
        """Arms whose reward is random."""
        return [name for name, arm in self.arms.items() if arm.reward == "random"]

    @property
    def compared(self) -> list[str]:
        """Arms that are no placebo."""
        return [name for name in self.arms if name not in self.placebos]

    @property
    def judged_split(self) -> Literal["dev", "test"]:
        """The split that the verdict rests on."""
        return "test" if "test" in self.evaluation.splits else "dev"

    @model_validator(mode="after")
    def _possible(self) -> "Study":
        if (self.model.start is None) == (self.demo_policy is None):
            raise ValueError(
                "exactly one of model.start and demo_policy must be set, a start checkpoint or a recipe to make one; found model.start "
                f"{json.dumps(self.model.start)} and demo_policy {'null' if self.demo_policy is None else 'set'}"
            )
        for measure, source in (("agent", self.baselines.agent), ("retention", self.baselines.retention)):
            if source is not None and Path(source) == Path("results", self.study):
                raise ValueError(f"baselines.{measure}: {source!r} is this study itself; name an earlier one, or null to evaluate anew")
        if self.baselines.agent is not None and is_recorded(self.baselines.agent):
            raise ValueError(f"baselines.agent: {self.baselines.agent!r} is a file; agent baselines come from an earlier study's folder")
        if "baseline" in self.arms:
            raise ValueError("arms.baseline: 'baseline' is the name of the start policy, choose another")
        if self.evaluation.select is not None and not self.compared:
            raise ConfigError(f"evaluation.select is {self.evaluation.select}, but every arm is a placebo ({', '.join(self.placebos)})")
        if self.preflight.groups > self.tasks.splits.train:
            raise ConfigError(f"preflight.groups is {self.preflight.groups}, tasks.splits.train has {self.tasks.splits.train} tasks")
        self._enough_tasks("training", self.training)
        for name, arm in self.arms.items():
            try:
                settings = arm.settings(self.training)
            except ConfigError as error:  # each value is valid, the combination is not
                raise ConfigError(f"arms.{name}.training: {str(error).splitlines()[-1].strip().removeprefix('(top): ')}") from None
            self._enough_tasks(f"arms.{name}.training", settings)
        return self

    def _enough_tasks(self, key: str, settings: TrainingSettings) -> None:
        if settings.tasks_per_step > self.tasks.splits.train:
            raise ConfigError(
                f"{key}.batch_size takes {settings.tasks_per_step} tasks a step, tasks.splits.train has {self.tasks.splits.train}"
            )


T = TypeVar("T", bound=Section)


def validate(raw: Mapping[str, Any], model: type[T] = Study, origin: str = "config") -> T:
    """Validate plain data. Raises `ConfigError` with one line per offending key path."""
    try:
        return model.model_validate_json(json.dumps(raw))
    except TypeError as error:  # a YAML tag such as !!set or !!timestamp
        raise ConfigError(f"{origin} is not valid: {error}; use mappings, lists, strings, numbers, true, false and null") from None
    except ValidationError as error:
        lines = [f"  {_path(e['loc'])}: {_message(e)}" for e in _innermost(error.errors())]
        raise ConfigError("\n".join([f"{origin} is not valid:", *lines])) from None


def _innermost(errors: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Without errors that only follow from one inside: pydantic calls a list whose items are refused too short as well."""
    places = [error["loc"] for error in errors]
    return [e for e in errors if not any(len(p) > len(e["loc"]) and p[: len(e["loc"])] == e["loc"] for p in places)]


def _path(loc: tuple[int | str, ...]) -> str:
    return ".".join(str(part) for part in loc if part != "[key]") or "(top)"


def _message(error: Mapping[str, Any]) -> str:
    if error["type"] == "missing":
        return "missing; config.yaml shows every key"
    if error["type"] == "value_error":  # raised above, names its values itself
        return str(error["msg"]).removeprefix("Value error, ")
    found = textwrap.shorten(json.dumps(error["input"], ensure_ascii=False), 80)
    if error["type"] == "extra_forbidden":
        return f"unknown key (found {found}); check its spelling against config.yaml"
    return f"{error['msg']} (found {found})"


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Deep merge of mappings; anything else above replaces what is below."""
    out = dict(below)
    for key, value in above.items():
        both = isinstance(value, Mapping) and isinstance(out.get(key), Mapping)
        out[key] = merge(out[key], value) if both else value
    return out
