"""docs/configuration.md is what its script makes, and every field of every settings model has a description."""

import importlib
import runpy
from pathlib import Path

import pytest

from agentrl.evidence.section import Section

ROOT = Path(__file__).parents[2]
REFERENCE = runpy.run_path(str(ROOT / "docs" / "make_configuration.py"))
MODULES = [
    *sorted(ROOT.glob("scripts/agentrl/*/settings.py")),
    ROOT / "scripts" / "agentrl" / "study" / "config.py",
]
MODELS = [
    model
    for path in MODULES
    for module in [
        importlib.import_module(".".join(path.relative_to(ROOT / "scripts").with_suffix("").parts))
    ]
    for model in vars(module).values()
    if isinstance(model, type)
    and issubclass(model, Section)
    and model.__module__ == module.__name__
]


def test_the_page_is_what_its_script_makes() -> None:
    found, made = REFERENCE["PAGE"].read_text(encoding="utf-8"), REFERENCE["page"]()
    assert found == made, "run `python docs/make_configuration.py`"


@pytest.mark.parametrize(
    "model",
    [model for model in MODELS if not model.__name__.endswith("Overrides")],
    ids=lambda model: model.__name__,
)
def test_every_field_has_a_description(model: type[Section]) -> None:
    texts = REFERENCE["descriptions"](model)
    assert [name for name in model.model_fields if not texts.get(name)] == []


def test_a_field_without_a_description_is_found() -> None:
    assert set(REFERENCE["_described"](Bare)) == {"told"}


class Bare(Section):
    told: int
    """A number."""
    silent: int
