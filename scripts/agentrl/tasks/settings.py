"""Section `tasks-{split}`: which tasks one split holds."""

from typing import Literal

from pydantic import model_validator

from agentrl.evidence.section import Name, Positive, Section, Seed


class Range(Section):
    """Inclusive range of a private fact."""

    min: Positive
    """Smallest value."""
    max: Positive
    """Largest value."""

    @model_validator(mode="after")
    def _ordered(self) -> "Range":
        if self.min > self.max:
            raise ValueError(f"min {self.min} is above max {self.max}")
        return self


class BaseTasks(Section):
    """What tasks of no split depend on."""

    family: Name
    """Kind of question: a name in `tasks.families.FAMILIES`."""
    scaffold: Name
    """How much of the solution the prompt gives away: a level of the family (`tasks.families.Family.scaffolds`)."""
    quantity: Range
    """Range of the first private fact, in pieces."""
    unit_price: Range
    """Whole euros."""


class TaskSplit(BaseTasks):
    """One split of the task set, as its job reads it."""

    seed: Seed
    """Of pairs, ids and wordings (`tasks.seed`)."""
    count: Positive
    """Tasks of this split (`tasks.splits`)."""


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
