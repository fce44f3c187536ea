"""The model whose kernels are compiled ahead is that of a rank."""

from pathlib import Path

import pytest

pytest.importorskip("triton")

from benchmarks.model.model_shapes import write_config
from raydix.kernels.compiling.variants import compiling_for
from raydix.moe.bank import ExpertBank
from raydix.runtime.config.loading import load_config
from raydix.runtime.model.checkpoint.checkpoint_config import read_checkpoint_config
from raydix.runtime.model.decoder.decoder import Decoder
from raydix.runtime.model.spec.spec import MoeMlpSpec
from raydix.runtime.model.steps import step_variants
from raydix.runtime.model.steps.step_variants import ShapedModel
from tests.kernels.traced_steps import HOPPER


@pytest.mark.parametrize(("tp", "dp", "ep"), [(1, 4, 4), (2, 1, 2), (2, 1, 1)])
def test_ranks_that_share_experts_have_whole_ones_in_their_seats(
    tp: int, dp: int, ep: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_config("moe_l12", tmp_path)
    config = load_config(
        {
            "model": {"path": str(folder), "device": "cuda"},
            "parallel": {"tp": tp, "dp": dp, "ep": ep},
            "experts": {"redundant_per_rank": 3, "spare_per_rank": 2},
            "cache": {"l2": None},
        }
    )
    spec = read_checkpoint_config(folder).spec
    mlp = spec.layers[0].mlp
    assert isinstance(mlp, MoeMlpSpec)
    made: list[Decoder] = []
    make = step_variants.make_decoder

    def note(*args: object, **named: object) -> Decoder:
        made.append(make(*args, **named))
        return made[-1]

    monkeypatch.setattr(step_variants, "make_decoder", note)
    with compiling_for(HOPPER):
        ShapedModel(config, spec, 4096)

    bank = next(each for each in made[0].modules() if isinstance(each, ExpertBank))
    is_shared = ep > 1
    num_seats = mlp.num_experts // ep + (3 + 2 if is_shared else 0)
    size = mlp.intermediate_size if is_shared else mlp.intermediate_size // tp
    assert bank.gate_up.matrix_OC.shape == (num_seats, 2 * size, spec.hidden_size)
