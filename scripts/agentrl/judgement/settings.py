"""Sections `statistics` and `plan`: how policies are compared, and what the study should be able to find."""

from typing import Annotated

from pydantic import Field

from agentrl.evidence.section import Positive, Section, Seed, Share


class Statistics(Section):
    """How policies are compared."""

    confidence: Annotated[float, Field(gt=0.5, lt=1)]
    """Coverage of every interval; the non-inferiority bound is the lower end of one."""
    alpha: Annotated[float, Field(gt=0, lt=0.5)]
    """Level of the verdict's test, after Holm over the arms, and of the placebo's."""
    seed: Seed
    """Of resampling, where an exact distribution is impossible."""
    margin: Annotated[float, Field(gt=0, lt=1)]
    """Loss of retention that is tolerated, as a fraction: the non-inferiority bound must lie above its negative."""
    seeds_for_verdict: Annotated[int, Field(ge=5)]
    """Fewest training seeds with which an arm may be called improved; below 5 the interval is only descriptive (`two_way.py`)."""


class PlanSettings(Section):
    """What a study should be able to find, and what is assumed before anything is known."""

    wanted_difference: Annotated[float, Field(gt=0, lt=1)]
    """Gain of agent success, as a fraction."""
    power: Annotated[float, Field(gt=0, lt=1)]
    """Probability with which a true gain should be found."""
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
    """Episodes of every task (`evaluation.trials`)."""
    seeds: Positive
    """Training seeds of every arm."""
    arms: Annotated[int, Field(ge=0)]
    """Arms that are judged, none of them a placebo: Holm corrects over them."""
    retention_items: Positive
    """Frozen retention items."""
    alpha: Annotated[float, Field(gt=0, lt=0.5)]
    """Level of the verdict's test (`statistics.alpha`)."""
