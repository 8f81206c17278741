"""Calculator: exact where it answers, bounded in everything, and never code."""

import re
import warnings
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.tasks.calculator import (
    MAX_DIGITS,
    MAX_LENGTH,
    ExpressionError,
    calculate,
    factors,
    parse,
)

INTEGERS = st.integers(min_value=0, max_value=10**9)


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("7 * 59", "413"),
        (" 7*59\n", "413"),
        ("(1 + 2) * -3", "-9"),
        ("0.1 + 0.2", "0.3"),
        ("1 / 3", "0.333333333333"),
        ("-1 / 3", "-0.333333333333"),
        ("2 / 3", "0.666666666667"),
        ("-1 / 10 ** 13", "0"),
        ("10 / 4", "2.5"),
        ("2 ** 10", "1024"),
        ("2 ** -2", "0.25"),
        ("12345678901234567890.5", "12345678901234567890.5"),
        ("0.1234567890123456789 * 10 ** 16", "1234567890123456.789"),
    ],
)
def test_known_values(expression: str, value: str) -> None:
    assert calculate(expression) == value


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("", "keine Rechnung"),
        ("7 *", "keine Rechnung"),
        ("7\n* 59", "nur Zahlen"),
        ("7,5 * 2", "nur Zahlen"),
        ("7 x 59", "nur Zahlen"),
        ("menge * 59", "nur Zahlen"),
        ("__import__('os')", "nur Zahlen"),
        ("True * 3", "nur Zahlen"),
        ("1j", "nur Zahlen"),
        ("(1, 2)", "nur Zahlen"),
        ("1(2)", "nur Zahlen"),
        ("()", "nur Zahlen"),
        ("7 // 2", "nur Zahlen"),
        ("0x7 * 59", "nur Zahlen"),
        ("5_9 * 7", "nur Zahlen"),
        ("1e999999999", "nur Zahlen"),
        ("7 * 59 # 413", "nur Zahlen"),
        ("\uff17 * 59", "nur Zahlen"),
        ("\ud800", "nur Zahlen"),
        ("1 / 0", "Division durch null"),
        ("0 ** -1", "Division durch null"),
        ("2 ** 0.5", "Exponent"),
        ("2 ** 17", "Exponent"),
        ("9 ** 9 ** 9", "Exponent"),
        ("1" + "0" * MAX_DIGITS, "Stellen"),
        ("10 ** 16 * 10 ** 16", "Stellen"),
        ("-" * 20 + "1", "geschachtelt"),
        ("1 + " * MAX_LENGTH + "1", "länger"),
    ],
)
def test_refusals_say_why(expression: str, reason: str) -> None:
    with pytest.raises(ExpressionError, match=reason):
        calculate(expression)


@given(st.one_of(st.text(max_size=100), st.text("0123456789.+-*/()e_ #x\t", max_size=MAX_LENGTH)))
def test_any_text_is_answered_or_refused_without_a_warning(expression: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            value = calculate(expression)
        except ExpressionError:
            return
    whole, _, decimals = value.partition(".")
    assert re.fullmatch(r"-?\d+", whole)
    assert re.fullmatch(r"(\d{0,11}[1-9])?", decimals)


@given(INTEGERS, INTEGERS, st.sampled_from("+-*"))
def test_integers_are_exact(a: int, b: int, operator: str) -> None:
    assert int(calculate(f"{a} {operator} {b}")) == {"+": a + b, "-": a - b, "*": a * b}[operator]


@given(INTEGERS, st.integers(min_value=1, max_value=10**6))
def test_division_is_rounded_to_twelve_places(a: int, b: int) -> None:
    assert abs(Fraction(calculate(f"{a} / {b}")) - Fraction(a, b)) <= Fraction(1, 2 * 10**12)


@given(INTEGERS, INTEGERS)
def test_factors_reads_exactly_a_product_of_two_integers(a: int, b: int) -> None:
    assert factors(f"{a} * {b}") == factors(f"({a})*({b})") == (a, b)


@pytest.mark.parametrize(
    "expression",
    [
        "413",
        "7 + 59",
        "7 * 59 * 1",
        "7.0 * 59",
        "-7 * -59",
        "7 * (58 + 1)",
        "7 ** 59",
        "7 *",
        "7 * 59 # x",
    ],
)
def test_nothing_else_is_a_product(expression: str) -> None:
    assert factors(expression) is None


def test_parse_refuses_before_python_reads() -> None:
    with pytest.raises(ExpressionError, match=str(MAX_LENGTH)):
        parse("(" * (MAX_LENGTH + 1))
