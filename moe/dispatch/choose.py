"""Which backend carries tokens fastest, by what has been measured.

Times are those of `benchmarks.dispatch`, dispatch and combine: two H200 (2026-11-22) and four
(2026-11-26), hidden 7168, top-8 of 256 experts, bf16. A table is refuted by a later record of that
benchmark, never while ranks run: whoever finds another backend faster names it in
`experts.dispatch`.
"""

from collections.abc import Collection, Mapping, Sequence

from raydix.moe.dispatch.protocol import DispatchForm

Times = Mapping[DispatchForm, Mapping[int, Mapping[str, float]]]
"""Microseconds of an exchange, by the most tokens of a rank and the backend's configured name."""


def _named(
    backends: Sequence[str], times: Mapping[DispatchForm, Mapping[int, Sequence[float]]]
) -> Times:
    return {
        form: {most: dict(zip(backends, each, strict=True)) for most, each in buckets.items()}
        for form, buckets in times.items()
    }


MEASURED_US: Mapping[int, Times] = {
    2: _named(
        ("symmetric", "nccl", "deepep"),
        {
            DispatchForm.LOW_LATENCY: {
                1: (11.0, 38.6, 59.5),
                16: (12.9, 43.3, 62.9),
                64: (17.4, 58.6, 70.8),
                128: (24.7, 78.9, 84.8),
                512: (63.0, 151.6, 156.5),
            },
            DispatchForm.NORMAL: {
                128: (35.5, 88.4, 99.4),
                1024: (125.3, 256.4, 255.8),
                4096: (431.1, 753.4, 805.9),
                8192: (834.7, 1406.0, 1537.0),
            },
        },
    ),
    4: _named(
        ("symmetric", "nccl", "deepep"),
        {
            DispatchForm.LOW_LATENCY: {
                1: (16.9, 49.1, 60.8),
                16: (20.7, 59.6, 66.7),
                64: (34.3, 100.7, 83.8),
                128: (50.0, 125.8, 108.0),
                512: (143.8, 287.2, 224.1),
            },
            DispatchForm.NORMAL: {
                128: (66.2, 137.1, 122.5),
                1024: (282.6, 502.6, 379.7),
                4096: (1013.0, 1672.0, 1212.0),
                8192: (1977.0, 3201.0, 2303.0),
            },
        },
    ),
}
"""The measured times, by the number of ranks."""


def fastest(form: DispatchForm, num_tokens: int, available: Collection[str], num_ranks: int) -> str:
    """Choose the backend to use if the busiest rank has `num_tokens`.

    `available`: at least one. Those never measured come after all others, in order of their names.
    """
    buckets = _times(num_ranks)[form]
    bucket = min((most for most in buckets if most >= num_tokens), default=max(buckets))
    return min(available, key=lambda name: (buckets[bucket].get(name, float("inf")), name))


def _times(num_ranks: int) -> Times:
    """The times for `num_ranks`, or for the most ranks below it that were measured."""
    measured = max((ranks for ranks in MEASURED_US if ranks <= num_ranks), default=min(MEASURED_US))
    return MEASURED_US[measured]


def winners(available: Collection[str], num_ranks: int) -> frozenset[str]:
    """The backends that are the fastest for some form and number of tokens."""
    return frozenset(
        fastest(form, num_tokens, available, num_ranks)
        for form, buckets in _times(num_ranks).items()
        for num_tokens in buckets
    )
