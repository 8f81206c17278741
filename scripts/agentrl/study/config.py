"""The study's configuration as validated models: unknown keys, wrong types and impossible combinations are refused before any job.

`strictyaml` reads the files, `sections` makes what jobs read.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from agentrl.demo.settings import DemoPolicy
from agentrl.evaluation.settings import EvaluationShape, Retention, is_recorded
from agentrl.evidence.section import ConfigError, Name, Positive, Section, Seed, validate
from agentrl.judgement.settings import PlanSettings, Statistics
from agentrl.policy.settings import Model
from agentrl.rollout.settings import Decoding, Protocol
from agentrl.tasks.families import SPLITS, check_family, check_share
from agentrl.tasks.settings import BaseTasks
from agentrl.training.settings import Arm, PreflightGroups, Reward, TrainingSettings


class Splits(Section):
    """Tasks per split: `tasks.families.SPLITS`, each at most its share of the pairs (`SHARES` there)."""

    train: Positive
    """Training tasks."""
    dev: Positive
    """Tasks for looking and, with `evaluation.select`, for choosing."""
    test: Positive
    """Tasks for judging."""


class Tasks(BaseTasks):
    """The frozen task set."""

    seed: Seed
    """Of pairs, ids and wordings."""
    splits: Splits
    """How many tasks each split has."""

    @model_validator(mode="after")
    def _known_family_and_sufficient_shares(self) -> "Tasks":
        check_family(self)
        for split in SPLITS:
            check_share(self, split, getattr(self.splits, split))
        return self


class Training(TrainingSettings):
    """The training of every arm, once per seed."""

    seeds: Annotated[tuple[Seed, ...], Field(min_length=1)]
    """One GRPO run per arm and seed: order of the tasks, the adapter's initialisation and sampling."""

    @model_validator(mode="after")
    def _distinct_seeds(self) -> "Training":
        if len(set(self.seeds)) != len(self.seeds):
            raise ValueError(f"seeds {list(self.seeds)} repeat")
        return self


class Evaluation(EvaluationShape):
    """Which splits are evaluated, and how."""

    splits: Annotated[tuple[Literal["dev", "test"], ...], Field(min_length=1)]
    """Splits on which policies are evaluated; the verdict rests on test, where it is named."""
    select: Literal["dev"] | None = None
    """`dev`: arms are compared on dev, and test is evaluated for the start policy and the best of them only."""

    @model_validator(mode="after")
    def _both_splits(self) -> "Evaluation":
        if self.select is not None and set(self.splits) != {"dev", "test"}:
            raise ValueError(
                f"select: {self.select} chooses on dev and judges on test; splits must name both, found {list(self.splits)}"
            )
        return self


class RetentionChoice(Retention):
    """Retention, and a file that names the items. The file is a rule's input, so the section that jobs read does not hold its path."""

    ids_from: str | None = None
    """Text file with one item id a line, or a recorded baseline (`*.json`), whose items are taken in its order."""

    @model_validator(mode="after")
    def _one_choice(self) -> "RetentionChoice":
        if self.ids is not None and self.ids_from is not None:
            raise ValueError(
                f"ids and ids_from ({self.ids_from!r}) both choose the items; set one of them to null"
            )
        return self


class Baselines(Section):
    """Evaluations of the start policy that are taken over, not run. No job reads this: the files are inputs of rules."""

    agent: str | None = None
    """Folder of an earlier study, e.g. results/earlier."""
    retention: str | None = None
    """The same, or a file in the format of `agentrl/evaluation/recorded.py`; it ends in .json."""

    @property
    def recorded_file(self) -> str | None:
        """The retention baseline in the documented format, if that is what is configured."""
        return (
            self.retention if self.retention is not None and is_recorded(self.retention) else None
        )

    @property
    def earlier(self) -> dict[str, str]:
        """`agent` and `retention`, as far as they come from an earlier study, -> its folder."""
        found = {"agent": self.agent, "retention": None if self.recorded_file else self.retention}
        return {
            measure: str(Path(folder)) for measure, folder in found.items() if folder is not None
        }


class Study(Section):
    """One study. `results/{study}/` holds everything it makes."""

    study: Name
    """Name of the folder `results/{study}/`."""
    finished: Literal["replace", "refuse"]
    """Whether a run may make evidence of a finished study anew (`agentrl.study.finished`). No job reads this."""
    model: Model
    """The start policy and how every stage loads it."""
    tasks: Tasks
    """The frozen task set."""
    protocol: Protocol
    """What ends an episode and what breaks strict success."""
    decoding: Decoding
    """Sampling of episodes."""
    reward: Reward
    """Milestones of the reward `shaped`."""
    training: Training
    """GRPO, for every arm and seed."""
    arms: Annotated[dict[Name, Arm], Field(min_length=1)]
    """Name of an arm -> its reward, what it changes of `training`, and its warm-up."""
    preflight: PreflightGroups
    """Groups that are sampled before training."""
    evaluation: Evaluation
    """Agent evaluation."""
    retention: RetentionChoice
    """Mathematics without tools."""
    baselines: Baselines = Baselines()
    """Evaluations of the start policy that are taken over."""
    statistics: Statistics
    """How policies are compared."""
    plan: PlanSettings
    """What the study should be able to find."""
    demo_policy: DemoPolicy | None = None
    """Recipe of a start policy that the pipeline makes itself; null where `model.start` names one."""

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
        for measure, source in (
            ("agent", self.baselines.agent),
            ("retention", self.baselines.retention),
        ):
            if source is not None and Path(source) == Path("results", self.study):
                raise ValueError(
                    f"baselines.{measure}: {source!r} is this study itself; name an earlier one, or null to evaluate anew"
                )
        if self.baselines.agent is not None and is_recorded(self.baselines.agent):
            raise ValueError(
                f"baselines.agent: {self.baselines.agent!r} is a file; agent baselines come from an earlier study's folder"
            )
        if "baseline" in self.arms:
            raise ValueError(
                "arms.baseline: 'baseline' is the name of the start policy, choose another"
            )
        if self.evaluation.select is not None and not self.compared:
            raise ConfigError(
                f"evaluation.select is {self.evaluation.select}, but every arm is a placebo ({', '.join(self.placebos)})"
            )
        if self.preflight.groups > self.tasks.splits.train:
            raise ConfigError(
                f"preflight.groups is {self.preflight.groups}, tasks.splits.train has {self.tasks.splits.train} tasks"
            )
        self._enough_tasks("training", self.training)
        for name, arm in self.arms.items():
            try:
                settings = arm.settings(self.training)
            except ConfigError as error:  # each value is valid, the combination is not
                raise ConfigError(
                    f"arms.{name}.training: {str(error).splitlines()[-1].strip().removeprefix('(top): ')}"
                ) from None
            self._enough_tasks(f"arms.{name}.training", settings)
        return self

    @model_validator(mode="after")
    def _samples(self) -> "Study":
        if self.decoding.temperature == 0:
            raise ConfigError(
                "decoding.temperature is 0: GRPO compares episodes of one task that were sampled, and greedy ones are all equal; "
                "set it above 0"
            )
        return self

    def _enough_tasks(self, key: str, settings: TrainingSettings) -> None:
        if settings.tasks_per_step > self.tasks.splits.train:
            raise ConfigError(
                f"{key}.batch_size takes {settings.tasks_per_step} tasks a step, tasks.splits.train has {self.tasks.splits.train}"
            )


def validate_study(raw: Mapping[str, Any]) -> Study:
    """A whole study from plain data. Raises `ConfigError` with one line per offending key path."""
    return validate(raw, Study)
