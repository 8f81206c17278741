"""Literal arithmetic over an AST, bounded in length, depth, digits and exponent. Nothing is ever evaluated as code."""

import ast
import operator
import re
from collections.abc import Callable
from fractions import Fraction

from agentrl.evidence.errors import StudyError

MAX_LENGTH = 80
"""Characters of one expression: a product of two facts needs under 20."""
MAX_DEPTH = 12
"""Nested operations; keeps the interpreter's own recursion far from Python's limit."""
MAX_DIGITS = 30
"""Digits of any literal or intermediate numerator or denominator."""
MAX_EXPONENT = 16
"""Largest exponent; with MAX_DIGITS it bounds the work of a power."""

_ALPHABET = re.compile(r"[0-9.+\-*/() \t]*")
"""Everything an expression may be spelled with: no name, no comment, no hexadecimal, no exponent notation, no second line."""
_BINARY: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_UNARY: dict[type[ast.unaryop], Callable[[Fraction], Fraction]] = {
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
}


class ExpressionError(StudyError, ValueError):
    """The expression is outside the calculator's language or its bounds; the message is the German observation."""


def parse(expression: str) -> ast.expr:
    """Parse one bounded expression. Raises `ExpressionError`."""
    if len(expression) > MAX_LENGTH:
        raise ExpressionError(f"Ausdruck ist länger als {MAX_LENGTH} Zeichen")
    if not _ALPHABET.fullmatch(expression.strip()):
        raise ExpressionError("nur Zahlen, + - * / ** und Klammern sind erlaubt")
    try:
        return ast.parse(expression.strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise ExpressionError("Ausdruck ist keine Rechnung") from None


def calculate(expression: str) -> str:
    """Value of literal arithmetic (+ - * / **, parentheses, integers, decimals) as text.

    Exact: an integer, a decimal where it terminates within 12 places, else rounded to 12 places.
    Raises `ExpressionError`.
    """
    return _text(_value(parse(expression), expression.strip(), 0))


def factors(expression: str) -> tuple[int, int] | None:
    """The two integers if the expression is exactly their product, else None. Source of the product milestone."""
    try:
        node = parse(expression)
    except ExpressionError:
        return None
    if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)):
        return None
    left, right = node.left, node.right
    if not (isinstance(left, ast.Constant) and isinstance(right, ast.Constant)):
        return None
    return (
        (left.value, right.value) if type(left.value) is int and type(right.value) is int else None
    )


def _value(node: ast.expr, source: str, depth: int) -> Fraction:
    if depth > MAX_DEPTH:
        raise ExpressionError(f"Ausdruck ist tiefer als {MAX_DEPTH} Ebenen geschachtelt")
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return _bounded(
            Fraction(ast.get_source_segment(source, node))
        )  # the decimal as written, not its binary neighbour
    if isinstance(node, ast.UnaryOp) and type(node.op) in _UNARY:
        return _UNARY[type(node.op)](_value(node.operand, source, depth + 1))
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left, source, depth + 1), _value(node.right, source, depth + 1)
        if isinstance(node.op, ast.Pow):
            return _power(left, right)
        if type(node.op) in _BINARY:
            if isinstance(node.op, ast.Div) and right == 0:
                raise ExpressionError("Division durch null")
            return _bounded(_BINARY[type(node.op)](left, right))
    raise ExpressionError("nur Zahlen, + - * / ** und Klammern sind erlaubt")


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1 or abs(exponent) > MAX_EXPONENT:
        raise ExpressionError(f"Exponent muss ganz und höchstens {MAX_EXPONENT} sein")
    if base == 0 and exponent < 0:
        raise ExpressionError("Division durch null")
    return _bounded(base**exponent.numerator)


def _bounded(value: Fraction) -> Fraction:
    limit = 10**MAX_DIGITS
    if abs(value.numerator) >= limit or value.denominator >= limit:
        raise ExpressionError(f"Zahl hat mehr als {MAX_DIGITS} Stellen")
    return value


def _text(value: Fraction) -> str:
    if value.denominator == 1:
        return str(value.numerator)
    digits = round(abs(value) * 10**12)
    whole, fraction = divmod(digits, 10**12)
    tail = f"{fraction:012d}".rstrip("0")
    return ("-" if value < 0 and digits else "") + str(whole) + (f".{tail}" if tail else "")
