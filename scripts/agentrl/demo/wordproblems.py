"""Tiny German word problems with one addition or subtraction: the mathematics a demo model must not lose.

The wordings of held-out problems share no template with the wordings a demo model may be trained on. Names,
objects and numbers are shared on purpose: a held-out problem tests the reading, not the multiplication table.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from random import Random

GIRLS = ("Lena", "Mia", "Emma", "Aylin", "Sophie", "Clara", "Nora", "Hanna", "Ida", "Marta")
BOYS = ("Paul", "Emil", "Jonas", "Murat", "Felix", "Anton", "Omar", "Theo", "Ben", "Lukas")
OBJECTS = (
    "Äpfel", "Murmeln", "Bücher", "Stifte", "Bälle", "Karten", "Kekse", "Muscheln", "Steine",
    "Münzen", "Perlen", "Blumen", "Birnen", "Nüsse", "Bonbons", "Aufkleber", "Federn", "Briefmarken",
)  # fmt: skip
"""Plurals only: every operand is at least 2, and the question asks `Wie viele ...?`."""
PAIRS = {
    "+": [(a, b) for a in range(2, 6) for b in range(2, 6)],
    "-": [(a, b) for a in range(4, 10) for b in range(2, 6) if a > b],
}
"""A table that half a million parameters can hold: 36 facts of one-digit operands."""

SEEN = {
    "+": (
        "{name} hat {a} {dinge}. {Er} bekommt {b} dazu. Wie viele {dinge} hat {er} jetzt?",
        "{name} hat {a} {dinge} und kauft noch {b}. Wie viele {dinge} hat {name} dann?",
        "{name} findet {a} {dinge}. Danach findet {er} noch {b}. Wie viele {dinge} sind es zusammen?",
        "In der Kiste liegen {a} {dinge}. {name} legt {b} in die Kiste. Wie viele {dinge} sind jetzt darin?",
        "{name} hat {a} {dinge}. {other} hat {b} {dinge}. Wie viele {dinge} haben die Kinder zusammen?",
        "{other} schenkt {name} {b} {dinge}. Vorher hatte {name} {a}. Wie viele {dinge} hat {name} nun?",
        "{name} kauft {a} {dinge} und {other} kauft {b}. Wie viele {dinge} sind das insgesamt?",
        "Auf dem Tisch liegen {a} {dinge}, auf dem Stuhl {b}. Wie viele {dinge} sind es insgesamt?",
        "{name} bekommt am Morgen {a} {dinge} und am Abend {b}. Wie viele {dinge} bekommt {er} insgesamt?",
        "{name} besitzt {a} {dinge}. Von der Oma bekommt {er} noch {b}. Wie viele {dinge} hat {er} jetzt?",
        "Im Korb sind {a} {dinge}. Es kommen {b} hinzu. Wie viele {dinge} sind nun im Korb?",
        "{name} zählt {a} große und {b} kleine {dinge}. Wie viele {dinge} zählt {er} insgesamt?",
    ),
    "-": (
        "{name} hat {a} {dinge}. {Er} gibt {b} davon ab. Wie viele {dinge} hat {er} noch?",
        "{name} hat {a} {dinge} und verliert {b}. Wie viele {dinge} bleiben übrig?",
        "{name} hat {a} {dinge}. {Er} verschenkt {b} an {other}. Wie viele {dinge} hat {name} jetzt?",
        "In der Kiste liegen {a} {dinge}. {name} nimmt {b} heraus. Wie viele {dinge} bleiben in der Kiste?",
        "{name} verkauft {b} von {ihren} {a} {dinge_dat}. Wie viele {dinge} behält {er}?",
        "Von {a} {dinge_dat} gehen {b} verloren. Wie viele {dinge} sind noch da?",
        "{name} hatte {a} {dinge}. Jetzt fehlen {b}. Wie viele {dinge} sind noch übrig?",
        "Auf dem Tisch liegen {a} {dinge}. {other} nimmt {b} weg. Wie viele {dinge} liegen noch dort?",
        "{name} kauft {a} {dinge} und gibt {other} {b} davon. Wie viele {dinge} behält {name}?",
        "Im Korb sind {a} {dinge}. Dann fallen {b} heraus. Wie viele {dinge} bleiben im Korb?",
        "{name} besitzt {a} {dinge}. {other} leiht sich {b} davon aus. Wie viele {dinge} hat {name} noch?",
        "{name} packt {a} {dinge} ein und nimmt {b} wieder heraus. Wie viele {dinge} sind noch eingepackt?",
    ),
}
HELD_OUT = {
    "+": (
        "{name} hatte {a} {dinge} und findet noch {b} dazu. Wie viele {dinge} hat {er} nun?",
        "Im Korb liegen {a} {dinge} und auf dem Tisch liegen {b}. Wie viele {dinge} sind das zusammen?",
        "{name} bekommt {b} {dinge} von {other} und hatte vorher {a}. Wie viele {dinge} besitzt {name} nun?",
        "Am Morgen findet {name} {a} {dinge}, am Abend kauft {er} {b}. Wie viele {dinge} sind das insgesamt?",
        "{name} legt {a} {dinge} in die Kiste und {other} legt {b} dazu. Wie viele {dinge} sind jetzt darin?",
        "{name} hat {a} große {dinge} und bekommt {b} kleine dazu. Wie viele {dinge} hat {er} insgesamt?",
    ),
    "-": (
        "{name} hatte {a} {dinge}. Davon verkauft {er} {b}. Wie viele {dinge} behält {name}?",
        "{name} nimmt {b} von {a} {dinge_dat} weg. Wie viele {dinge} liegen noch da?",
        "{name} kauft {a} {dinge}, dann verliert {er} {b} davon. Wie viele {dinge} hat {er} noch?",
        "{other} bekommt von {name} {b} {dinge}. Vorher hatte {name} {a}. Wie viele hat {name} noch?",
        "Auf dem Stuhl liegen {a} {dinge}. Davon nimmt {name} {b} weg. Wie viele {dinge} bleiben dort?",
        "Von {ihren} {a} {dinge_dat} verschenkt {name} {b}. Wie viele {dinge} besitzt {er} noch?",
    ),
}
"""Only words that `SEEN` uses too: a tiny model has no other source of vocabulary."""


@dataclass(frozen=True)
class Problem:
    """One word problem; `answer` is `a + b` or `a - b` and always positive."""

    id: str
    """`problem-0001`, or `problem-held-out-0001`."""
    question: str
    """German text that ends with the question; numbers as digits."""
    answer: int
    """1 to 18."""
    a: int
    """2 to 9 in an addition, 3 to 18 in a subtraction."""
    b: int
    """2 to 9."""
    op: str
    """`+` or `-`."""

    def as_item(self) -> dict[str, str | int]:
        """Return the retention item: id, question and answer."""
        return {"id": self.id, "question": self.question, "answer": self.answer}


def problems(count: int, seed: int, held_out: bool) -> list[Problem]:
    """Return `count` problems with distinct questions; a longer list begins with the shorter one."""
    stem = "problem-held-out" if held_out else "problem"
    drafts = islice(_distinct(Random(f"wordproblems/{stem}/{seed}"), held_out), count)
    return [
        Problem(f"{stem}-{number:04d}", text, a + b if op == "+" else a - b, a, b, op)
        for number, (text, a, b, op) in enumerate(drafts, 1)
    ]


def _distinct(rng: Random, held_out: bool) -> Iterator[tuple[str, int, int, str]]:
    templates = HELD_OUT if held_out else SEEN
    seen: set[str] = set()
    while True:
        op = rng.choice("+-")
        a, b = rng.choice(PAIRS[op])
        text = rng.choice(templates[op]).format(a=a, b=b, **_words(rng))
        if text not in seen:
            seen.add(text)
            yield text, a, b, op


def _words(rng: Random) -> dict[str, str]:
    name, other = rng.sample(GIRLS + BOYS, 2)
    things = rng.choice(OBJECTS)
    er, ihren = ("sie", "ihren") if name in GIRLS else ("er", "seinen")
    words = {"name": name, "other": other, "er": er, "Er": er.capitalize(), "ihren": ihren}
    return words | {"dinge": things, "dinge_dat": dative_plural(things)}


def dative_plural(plural: str) -> str:
    """Return the dative of a nominative plural: plus `n`, except after `n` or `s`."""
    return plural if plural.endswith(("n", "s")) else plural + "n"
