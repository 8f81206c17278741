"""German cardinal numbers in text: their words, and whether a text shows one of some numbers."""

import re
import unicodedata
from collections.abc import Collection
from functools import lru_cache

UNITS = (
    "null",
    "ein",
    "zwei",
    "drei",
    "vier",
    "fünf",
    "sechs",
    "sieben",
    "acht",
    "neun",
    "zehn",
    "elf",
    "zwölf",
)
TENS = (
    "zehn",
    "zwanzig",
    "dreißig",
    "vierzig",
    "fünfzig",
    "sechzig",
    "siebzig",
    "achtzig",
    "neunzig",
)
TEENS = {16: "sechzehn", 17: "siebzehn"}
MAX_WORD = 9999
"""Largest number whose words are known; larger ones are found in digits only."""
DIGITS = re.compile(r"\d+")
GROUPED = re.compile(r"(?<!\d)\d{1,3}(?:[.'’ ]\d{3})+(?!\d)")
"""Thousands in groups of three; NFKC has turned no-break spaces into plain ones."""
LETTERS = re.compile(r"[^\W\d_]+")


def mentions(text: str, numbers: Collection[int]) -> bool:
    """Whether the text shows one of the numbers, as a maximal run of digits or as a German cardinal in one word.

    Digits grouped by a thousands separator count as one number too. `ein` is an article, only `eins` is 1.
    """
    text = unicodedata.normalize("NFKC", text)
    shown = {int(run) for run in DIGITS.findall(text)}
    shown |= {int(re.sub(r"\D", "", group)) for group in GROUPED.findall(text)}
    spoken = {_fold(word) for word in LETTERS.findall(text)}
    return any(number in shown or number_words(number) & spoken for number in numbers)


def cardinal(number: int) -> str:
    """Return a German cardinal number in words, as counted (`eins`, `einhunderteins`); 0 to 9999, else ValueError."""
    if not 0 <= number <= MAX_WORD:
        raise ValueError(f"number {number} has no words here; expected 0 to {MAX_WORD}")
    if number == 0:
        return UNITS[0]
    thousands, hundreds, rest = number // 1000, number // 100 % 10, number % 100
    words = f"{UNITS[thousands]}tausend" if thousands else ""
    words += f"{UNITS[hundreds]}hundert" if hundreds else ""
    return words + (_below_hundred(rest) if rest else "")


def _below_hundred(number: int) -> str:
    if number == 1:
        return "eins"
    if number <= 12:
        return UNITS[number]
    tens, unit = divmod(number, 10)
    if tens == 1:
        return TEENS.get(number, f"{UNITS[unit]}zehn")
    return (f"{UNITS[unit]}und" if unit else "") + TENS[tens - 1]


@lru_cache(maxsize=4096)
def number_words(number: int) -> frozenset[str]:
    """Return the folded words for a number, 1100 to 1999 also as `elfhundert`; empty outside 0 to 9999."""
    if not 0 <= number <= MAX_WORD:
        return frozenset()
    words = {_fold(cardinal(number))}
    if 1100 <= number < 2000:
        rest = number % 100
        words.add(
            _fold(
                _below_hundred(number // 100) + "hundert" + (_below_hundred(rest) if rest else "")
            )
        )
    return frozenset(words)


@lru_cache(maxsize=4096)
def _fold(word: str) -> str:
    """Fold spellings of one number word: case, umlauts, `(ein)hundert`, `hundert(und)eins`, `hundertein(s)`, `zwo`."""
    word = word.casefold().replace("fuenf", "fünf").replace("zwoelf", "zwölf")
    word = re.sub(r"zwo(?=$|und|hundert|tausend)", "zwei", word)
    word = re.sub(r"(hundert|tausend)und", r"\1", word)
    word = re.sub(r"(hundert|tausend)ein$", r"\1eins", word)
    return re.sub(r"(^|tausend)ein(?=hundert|tausend)", r"\1", word)
