"""Links of the documentation lead somewhere: files that git tracks, and headings that are there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [
    *ROOT.glob("*.md"),
    *ROOT.glob("docs/*.md"),
    ROOT / "profiles/README.md",
    ROOT / "envs/gpu/README.md",
]
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
CODE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """Anchors of a page's headings, as they are shown on the web."""
    headings = re.findall(
        r"^#+ (.*)$", CODE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE
    )
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(CODE.sub("", page.read_text(encoding="utf-8"))):
        path, _, anchor = target.partition("#")
        if not path.startswith("https://"):
            found = (page.parent / path) if path else page
            assert found.exists(), f"{page.name}: no {target}"
            assert not anchor or anchor in anchors(found), f"{page.name}: no heading {target}"


def test_the_readme_fits_on_a_page_and_leads_to_every_other() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 110
    assert {page.name for page in ROOT.glob("docs/*.md")} <= {
        Path(target.partition("#")[0]).name for target in LINK.findall("\n".join(lines))
    }
