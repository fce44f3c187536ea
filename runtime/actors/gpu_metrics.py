"""The metrics of a GPU actor, from the figures of `GpuActor.stats`. The rank is the first label."""

from raydix.runtime.metrics import Figure, MetricGroup, Unit, counter, metrics_of

_KERNELS = (
    counter(
        "kernel_compilations_total",
        Unit.COUNT,
        "Variants of kernels that were compiled, or read from disk while requests waited.",
        Figure("kernels_compiled_start", ("start", "compiled")),
        Figure("kernels_compiled_serving", ("serving", "compiled")),
        Figure("kernels_found_serving", ("serving", "disk")),
        labels=("rank", "phase", "source"),
    ),
)

GPU_GROUPS = (MetricGroup("Kernels", _KERNELS),)
GPU_METRICS = metrics_of(GPU_GROUPS)
