from raydix.runtime.actors.gpu_metrics import GPU_METRICS
from tests.runtime.actors.sample_values import values_of


def test_compilations_are_told_by_phase_and_source_and_zero_where_there_are_no_kernels() -> None:
    figures = {"kernels_compiled_start": 56, "kernels_found_serving": 2}

    values = values_of(GPU_METRICS, figures, ("3",))

    name = "kernel_compilations_total"
    assert values[name, ("3", "start", "compiled")] == 56
    assert values[name, ("3", "serving", "compiled")] == 0
    assert values[name, ("3", "serving", "disk")] == 2
