from benchmarks.bf16_accuracy import TINY
from benchmarks.engine.engines import Options
from benchmarks.fp8_model import divergence_figures
from benchmarks.model.reference_models import make_configs


def test_float8_is_further_from_the_restored_floats_than_bf16_and_not_far() -> None:
    options = Options(device="cpu", is_tiny=True)
    config = make_configs(is_tiny=True)["dense"]

    figures = divergence_figures("dense", config, TINY, options)

    for figure in figures:
        assert figure.baseline is not None
        assert figure.baseline < figure.value < 0.1
