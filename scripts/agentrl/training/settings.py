"""Sections `training`, `reward`, `arm-{arm}` and `preflight`: how an arm is trained and what admits it."""

from typing import Annotated, Any, Literal, get_type_hints

from pydantic import Field, create_model, model_validator

from agentrl.evidence.section import Positive, Rate, Section, Share, merge, validate
from agentrl.policy.settings import Lora


class Reward(Section):
    """Milestone shaping of the training reward; clipped to [0, 1]; never mixed with success."""

    lookup: Share
    """For the lookup of the record."""
    calculation: Share
    """For the product of the retrieved values by the calculator."""
    strict: Share
    """For strict success."""
    tool_error: Share
    """Subtracted once per tool error."""


class Clip(Section):
    """How far the ratio to the sampling policy may go: `1 - low` to `1 + high`."""

    low: Annotated[float, Field(gt=0, lt=1)]
    """The ratio goes no lower than 1 less this."""
    high: Rate
    """The ratio goes no higher than 1 plus this."""


class Optimizer(Section):
    """AdamW of PyTorch. The weight decay spares norms and biases (`transformers.Trainer`)."""

    name: Literal["adamw_torch", "adamw_torch_fused"]
    """One algorithm, two implementations that round differently."""
    beta1: Annotated[float, Field(ge=0, lt=1)]
    """Decay of the gradient's running mean."""
    beta2: Annotated[float, Field(ge=0, lt=1)]
    """Decay of the squared gradient's running mean."""
    epsilon: Rate
    """Added to the denominator."""
    weight_decay: Annotated[float, Field(ge=0)]
    """Decoupled decay of the weights."""


class TrainingSettings(Section):
    """GRPO. One optimizer step consumes `batch_size` episodes: `batch_size / group_size` tasks."""

    steps: Positive
    """Optimizer steps."""
    group_size: Annotated[int, Field(ge=2)]
    """Episodes of one task, whose rewards are compared with each other."""
    batch_size: Positive
    """Episodes in one optimizer step; a multiple of `group_size`."""
    learning_rate: Rate
    """Highest learning rate."""
    lr_schedule: Literal["linear", "constant", "cosine"]
    """Course of the learning rate behind the warm-up."""
    warmup_steps: Annotated[int, Field(ge=0)]
    """Optimizer steps in which the learning rate rises from 0."""
    kl: Annotated[float, Field(ge=0)]
    """Weight of the KL penalty against the start policy (adapter off)."""
    kl_estimator: Literal["k3", "k3_unbiased"]
    """What stands for the KL divergence of one sampled token, with d = log p(reference) - log p(policy): `k3` is exp(d) - d - 1 and its
    gradient as it stands; `k3_unbiased` multiplies it by the ratio to the sampling policy, whose value is 1 on-policy but whose gradient
    makes the whole that of the reverse KL (TRL's `use_bias_correction_kl`)."""
    max_grad_norm: Rate
    """The gradient is scaled down to this norm where it is larger."""
    loss_type: Literal["dapo", "grpo", "dr_grpo", "bnpo"]
    """How token losses become one: `dapo` divides their sum by the tokens of the whole batch, `bnpo` by those of the batch on one device,
    `grpo` takes the mean of each episode and then of the episodes, `dr_grpo` divides by episodes times `protocol.budget`."""
    scale_rewards: Literal["group", "none"]
    """Whether advantages are divided by the standard deviation of their group's rewards."""
    importance_level: Literal["token", "sequence"]
    """Whether ratios to the sampling policy are of tokens, or one of the sequence (its geometric mean)."""
    clip: Clip
    """Bounds of the ratio to the sampling policy."""
    mask_truncated: bool
    """Whether episodes whose last token ends no turn are left out of the loss."""
    entropy_quantile: Annotated[float, Field(gt=0, le=1)]
    """Share of the tokens, those of the highest entropy, that the reward's gradient goes through; 1 takes all."""
    optimizer: Optimizer
    """The optimizer and its numbers."""
    lora: Lora
    """The adapter that is trained."""
    gradient_checkpointing: bool
    """Whether activations are computed again in the backward pass: less memory, more time."""
    checkpoint_every: Positive
    """Steps between resumable checkpoints in the work folder."""

    @model_validator(mode="after")
    def _groups_fill_batch(self) -> "TrainingSettings":
        if self.batch_size % self.group_size:
            raise ValueError(
                f"group_size {self.group_size} does not divide batch_size {self.batch_size}"
            )
        return self

    @property
    def tasks_per_step(self) -> int:
        """Groups in one optimizer step."""
        return self.batch_size // self.group_size


def _partial(model: type[Section]) -> type[Section]:
    """The same keys with the same checks, each of them optional: null or absent inherits."""
    hints = get_type_hints(model, include_extras=True)
    fields: dict[str, Any] = {}
    for name in model.model_fields:
        inner = hints[name]
        fields[name] = (
            (_partial(inner) if isinstance(inner, type) and issubclass(inner, Section) else inner)
            | None,
            None,
        )
    return create_model(
        f"{model.__name__}Overrides",
        __base__=Section,
        __doc__=f"Some keys of `{model.__name__}`.",
        **fields,
    )


TrainingOverrides = _partial(TrainingSettings)


class Warmup(Section):
    """Supervised training of an arm's LoRA on expert trajectories of training tasks, before GRPO."""

    steps: Positive
    """Optimizer steps."""
    batch_size: Positive
    """Demonstrations in one optimizer step."""
    learning_rate: Rate
    """Highest learning rate; it rises, then falls to 0 as a cosine."""


class Arm(Section):
    """One way to train, compared against the baseline: its reward, what it changes of `training`, and whether it is warmed up."""

    reward: Literal["shaped", "random", "binary"]
    """Milestone shaping, a fair coin (the placebo), or strict success as 0 or 1."""
    training: TrainingOverrides = TrainingOverrides()  # type: ignore[valid-type]
    """What the arm changes of the section `training`; null or absent inherits."""
    warmup: Warmup | None = None
    """A short supervised training before GRPO; null: none."""

    def content(self) -> dict[str, Any]:
        """Plain data with only those overrides that are set: an arm's section and its record in the training manifest."""
        warmup = None if self.warmup is None else self.warmup.model_dump(mode="json")
        return {
            "reward": self.reward,
            "training": self.training.model_dump(mode="json", exclude_none=True),
            "warmup": warmup,
        }

    def settings(self, base: TrainingSettings) -> TrainingSettings:
        """The effective settings: `base` below this arm's overrides. Raises `ConfigError` where they do not go together."""
        merged = merge(
            TrainingSettings.part(base.model_dump(mode="json")), self.content()["training"]
        )
        return validate(merged, TrainingSettings, "training with the arm's overrides")


class PreflightGroups(Section):
    """Before training: groups of training tasks sampled from the start policy."""

    groups: Positive
    """Training tasks, each played once per episode of a group."""


class Preflight(PreflightGroups):
    """Section `preflight`, as its job reads it."""

    group_size: Annotated[int, Field(ge=2)]
    """The largest group of any arm: a smaller one is a part of it."""
