"""One table over several finished studies, e.g. the demo's fresh seed triples; aggregates only."""

import argparse
from pathlib import Path
from typing import Any

from agentrl.evidence.files import read_json, write_json, write_text
from agentrl.evidence.stage import run_command
from agentrl.judgement.comparison import BASELINE
from agentrl.report.figures import points, probability


def main() -> None:
    """Read the summaries, print a Markdown table, optionally keep table and numbers as files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("studies", type=Path, nargs="+", help="results/{study} folders")
    parser.add_argument("--out", type=Path, help="write {out}.md and {out}.json")
    args = parser.parse_args()
    rows = [row(study) for study in args.studies]
    text = table(rows)
    print(text, end="")
    if args.out:
        write_text(args.out.with_suffix(".md"), text)
        write_json(args.out.with_suffix(".json"), rows)


def row(study: Path) -> dict[str, Any]:
    """What the table needs of one study, with where it ran and the seconds of its stages."""
    summary = read_json(study / "summary" / "summary.json")
    provenance = read_json(study / "statistics" / "provenance.json")
    status = {
        path.parent.relative_to(study).as_posix(): read_json(path)["seconds"]
        for path in study.rglob("status.json")
    }
    sections = {path.stem: read_json(path) for path in (study / "config").glob("*.json")}
    seeds = {
        "tasks": sections["tasks-train"]["seed"],
        "training": sorted({name.split("seed-")[1] for name in summary["training"]}),
    }
    if "demo-sft" in sections:
        seeds |= {
            "base": sections["demo-base"]["stage"]["seed"],
            "sft": sections["demo-sft"]["stage"]["seed"],
        }
    where = {name: provenance[name] for name in ("commit", "dirty", "packages", "host", "python")}
    kept = {
        name: summary[name]
        for name in ("study", "judged_on", "policies", "comparisons", "findings")
    }
    return {**kept, "seeds": seeds, "seconds": status, "where": where}


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown: one line per study and policy."""
    lines = [
        "| study (seeds) | policy | agent success | change, points | p over items | retention | zero-drop gate |",
        "| --- " * 7 + "|",
    ]
    for found in rows:
        judged, seeds = (
            found["judged_on"],
            ", ".join(
                f"{k} {v if isinstance(v, int) else '+'.join(v)}" for k, v in found["seeds"].items()
            ),
        )
        several = len(found["seeds"]["training"]) > 1
        for name, measures in found["policies"].items():
            if judged not in measures:
                continue  # passed over by the choice on dev
            agent, kept = measures[judged], measures["retention"]
            cells = [
                f"{agent['strict_success']}/{agent['episodes']}",
                "",
                "",
                f"{kept['correct']}/{kept['items']}",
                "",
            ]
            if pair := found["comparisons"].get(name):
                gate = "held" if pair["retention"]["zero_drop_gate"]["passed"] else "REGRESSED"
                p = (
                    pair[judged]["sign_flip"]["p"]
                    if pair[judged]["mcnemar_p"] is None
                    else pair[judged]["mcnemar_p"]
                )
                cells[1], cells[2], cells[4] = (
                    points(pair[judged]["difference"]),
                    probability(p),
                    gate,
                )
            label = f"{found['study']} ({seeds})" if name == BASELINE else ""
            policy = "start" if name == BASELINE else name if several else name.split("/")[0]
            lines.append(f"| {label} | {policy} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    run_command(main)
