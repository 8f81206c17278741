"""Numerals: every spelling of a number is found, and no other number is taken for it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.tasks import numerals

NUMBERS = st.integers(min_value=0, max_value=numerals.MAX_WORD)
SECRETS = {12, 105, 1260}


def test_cardinals() -> None:
    known = {
        0: "null", 1: "eins", 7: "sieben", 11: "elf", 12: "zwölf", 16: "sechzehn", 17: "siebzehn",
        19: "neunzehn", 20: "zwanzig", 21: "einundzwanzig", 30: "dreißig", 66: "sechsundsechzig",
        70: "siebzig", 77: "siebenundsiebzig", 100: "einhundert", 101: "einhunderteins",
        115: "einhundertfünfzehn", 238: "zweihundertachtunddreißig", 1000: "eintausend",
        1001: "eintausendeins", 2040: "zweitausendvierzig", 9999: "neuntausendneunhundertneunundneunzig",
    }  # fmt: skip
    assert {number: numerals.cardinal(number) for number in known} == known


@pytest.mark.parametrize("number", [-1, 10_000])
def test_numbers_without_words(number: int) -> None:
    with pytest.raises(ValueError, match=f"number {number} has no words here; expected 0 to 9999"):
        numerals.cardinal(number)
    assert numerals.number_words(number) == frozenset()


def test_no_word_means_two_numbers() -> None:
    words = [
        word for number in range(numerals.MAX_WORD + 1) for word in numerals.number_words(number)
    ]
    assert len(words) == len(set(words)) == numerals.MAX_WORD + 1 + 900, "1100 to 1999 have two"


@pytest.mark.parametrize(
    "text",
    [
        "Es sind 12 Stück.", "je 105€", "macht 1260", "1.260,00 Euro", "macht 1 260", "Nr.012", "ZWÖLF",
        "1'260", "1’260", "1\u00a0260", "1\u202f260", "zwoelf", "hundertfünf", "Hundertundfünf Euro", "einhundertfünf",
        "einhundertfuenf", "tausendzweihundertsechzig", "eintausendundzweihundertsechzig", "zwölfhundertsechzig",
        "zwoelfhundertsechzig", "tausendzwohundertsechzig", "zwo\u0308lf", "\uff11\uff12", "(zwölf)", "A12B", "zwölf_",
    ],
)  # fmt: skip
def test_spellings_are_found(text: str) -> None:
    assert numerals.mentions(text, SECRETS)


@pytest.mark.parametrize(
    ("text", "number"),
    [("zwo", 2), ("zwounddreißig", 32), ("DREISSIG", 30), ("hundertein", 101), ("Hundertundein", 101), ("tausendeinhundert", 1100),
     ("elfhundert", 1100), ("eintausendeinhundertein", 1101), ("eins", 1), ("null", 0), ("12.345.678", 12_345_678)],
)  # fmt: skip
def test_other_spellings_are_found(text: str, number: int) -> None:
    assert numerals.mentions(text, {number})


@pytest.mark.parametrize(
    "text",
    ["", "ein Auftrag", "112 und 1205 und 126", "zweihundertfünf", "zwölfte", "QXVTN", "12605"],
)
def test_other_numbers_are_not_found(text: str) -> None:
    assert not numerals.mentions(text, SECRETS)


@pytest.mark.parametrize(
    ("text", "number"),
    [("ein Auftrag", 1), ("Zwofold", 2), ("11260", 1260), ("1260.5", 12605), ("1.2605", 12605)],
)
def test_lookalikes_are_not_found(text: str, number: int) -> None:
    assert not numerals.mentions(text, {number})


def test_no_numbers_are_never_found() -> None:
    assert not numerals.mentions("12 oder zwölf", set())


@given(
    shown=NUMBERS,
    secret=NUMBERS,
    spell=st.sampled_from([numerals.cardinal, str, "{:,}".format, "{:06d}".format]),
)
def test_a_number_is_found_and_no_other(shown: int, secret: int, spell: object) -> None:
    text = f"Es sind {spell(shown).replace(',', '.')} Stück."
    assert numerals.mentions(text, {shown})
    parts = {shown} | ({shown // 1000, shown % 1000} if "." in text[:-1] else set())
    assert numerals.mentions(text, {secret}) == (secret in parts)
