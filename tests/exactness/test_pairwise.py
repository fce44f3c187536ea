"""The generator of cases for the matrix."""

import itertools

from tests.exactness.pairwise import pairwise

FACTORS = {
    "a": [1, 2, 3, 4, 5],
    "b": ["x", "y", "z"],
    "c": [True, False],
    "d": [None, 0, 1],
    "e": [1, 32],
}


def test_every_pair_of_values_meets_in_some_case() -> None:
    cases = pairwise(FACTORS, seed=0)

    for left, right in itertools.combinations(FACTORS, 2):
        met = {(case[left], case[right]) for case in cases}
        assert met == set(itertools.product(FACTORS[left], FACTORS[right]))


def test_cases_are_few_and_the_same_each_time() -> None:
    cases = pairwise(FACTORS, seed=0)

    assert len(cases) <= 20, "the two largest factors alone need 15"
    assert cases == pairwise(FACTORS, seed=0)
