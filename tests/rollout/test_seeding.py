"""Random streams: a key decides every number, and no two keys share them."""

from itertools import combinations

import numpy as np

from agentrl.rollout.seeding import integer, stream, uniform

PINNED = [0.8064536860058148, 0.7057549491194848, 0.2566254471224976]
PINNED_INTEGER = 478972861


def test_streams_are_pinned() -> None:
    """These numbers are part of every published result: a change here changes all episodes."""
    key = ("episode", 42, 0, "dev-0001", 0, 0)
    assert stream(*key).random(3).tolist() == PINNED
    assert uniform(*key) == PINNED[0]
    assert integer("training", 42) == PINNED_INTEGER


def test_keys_differ_in_type_order_and_boundaries() -> None:
    keys = [
        ("a", "bc"),
        ("ab", "c"),
        ("abc",),
        ("a", "b", "c"),
        ("c", "ab"),
        (1,),
        ("1",),
        (1, 1),
        (11,),
        ("",),
        ("", ""),
        (),
    ]
    draws = [uniform(*key) for key in keys]
    assert all(a != b for a, b in combinations(draws, 2))
    assert uniform(1) != uniform(True)


def test_streams_are_repeatable_and_uniform() -> None:
    assert np.array_equal(stream("x", 1).random(5), stream("x", 1).random(5))
    draws = np.array([uniform("fair", i) for i in range(2000)])
    assert draws.min() >= 0
    assert draws.max() < 1
    assert abs(draws.mean() - 0.5) < 4 / np.sqrt(12 * 2000)


def test_integers_fit_every_library() -> None:
    assert all(0 <= integer("seed", i) < 2**31 for i in range(100))
