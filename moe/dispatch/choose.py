"""Which backend carries tokens fastest, by what has been measured.

Times are those of `benchmarks.dispatch`, dispatch and combine: two H200, hidden 7168, top-8 of 256
experts, bf16, 2026-11-22.
"""

from collections.abc import Collection, Mapping

from raydix.moe.dispatch.protocol import DispatchForm

MEASURED_US: Mapping[DispatchForm, Mapping[int, Mapping[str, float]]] = {
    DispatchForm.LOW_LATENCY: {
        1: {"symmetric": 11.0, "nccl": 38.6},
        16: {"symmetric": 13.0, "nccl": 43.3},
        64: {"symmetric": 17.4, "nccl": 58.6},
        128: {"symmetric": 24.5, "nccl": 78.9},
        512: {"symmetric": 63.8, "nccl": 151.6},
    },
    DispatchForm.NORMAL: {
        128: {"symmetric": 35.6, "nccl": 88.4},
        1024: {"symmetric": 126.6, "nccl": 256.4},
        4096: {"symmetric": 438.1, "nccl": 753.4},
        8192: {"symmetric": 848.3, "nccl": 1406.0},
    },
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
