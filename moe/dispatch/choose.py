"""Which backend carries tokens fastest, by what has been measured.

Times are those of `benchmarks.dispatch`, dispatch and combine: two H200, hidden 7168, top-8 of 256
experts, bf16, 2026-11-22.
"""

from collections.abc import Collection, Mapping

from raydix.moe.dispatch.protocol import DispatchForm

_BACKENDS = ("symmetric", "nccl", "deepep", "nixl_ep", "mooncake_ep")
_TIMES_US = {
    DispatchForm.LOW_LATENCY: {
        1: (11.0, 38.6, 59.5, 34.1, 41.9),
        16: (12.9, 43.3, 62.9, 37.7, 47.4),
        64: (17.4, 58.6, 70.8, 58.5, 75.8),
        128: (24.7, 78.9, 84.8, 87.9, 118.3),
        512: (63.0, 151.6, 156.5, 279.6, 381.6),
    },
    DispatchForm.NORMAL: {
        128: (35.5, 88.4, 99.4, 272.6, 309.2),
        1024: (125.3, 256.4, 255.8, 1679.0, 1922.0),
        4096: (431.1, 753.4, 805.9, 6730.0, 7737.0),
        8192: (834.7, 1406.0, 1537.0, 13420.0, 15520.0),
    },
}
MEASURED_US: Mapping[DispatchForm, Mapping[int, Mapping[str, float]]] = {
    form: {most: dict(zip(_BACKENDS, times, strict=True)) for most, times in buckets.items()}
    for form, buckets in _TIMES_US.items()
}
"""By the tokens of a rank, and the backend's name in the configuration."""


def fastest(form: DispatchForm, num_tokens: int, available: Collection[str]) -> str:
    """Of the backends that there are, the one to take if the busiest rank has so many tokens.

    `available`: at least one. Those never measured come after all others, in order of their names.
    """
    buckets = MEASURED_US[form]
    bucket = min((most for most in buckets if most >= num_tokens), default=max(buckets))
    return min(available, key=lambda name: (buckets[bucket].get(name, float("inf")), name))


def winners(available: Collection[str]) -> frozenset[str]:
    """Those that are the fastest for some form and number of tokens: nobody needs the others."""
    return frozenset(
        fastest(form, num_tokens, available)
        for form, buckets in MEASURED_US.items()
        for num_tokens in buckets
    )
