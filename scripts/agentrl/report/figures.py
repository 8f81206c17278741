"""How numbers are printed: points, p values."""

SMALLEST_P = 0.0001
"""A smaller p is printed as below this."""


def points(fraction: float) -> str:
    """A fraction as signed percentage points."""
    return f"{100 * fraction:+.1f}"


def probability(value: float) -> str:
    """A p value with three significant digits."""
    return f"{value:.3g}" if value >= SMALLEST_P else f"< {SMALLEST_P}"
