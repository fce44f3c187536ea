from dataclasses import dataclass

import pytest
import torch

pytest.importorskip("triton")

from raydix.kernels.dense.glu_form import ClampedGlu, GeluTanhGlu, GluForm, SiluGlu
from raydix.kernels.moe import expert_inputs
from raydix.kernels.moe.expert_biases import ExpertBiases
from raydix.kernels.moe.expert_tiles import choose_tiles
from raydix.kernels.moe.grouped_gemm import fused_experts
from raydix.kernels.reference import experts as reference


@dataclass(frozen=True)
class Layer:
    """Random rows, experts and choices of (tokens, hidden, intermediate, experts, choices)."""

    shape: tuple[int, int, int, int, int]
    device: torch.device
    dtype: torch.dtype

    def tensors(
        self,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """The tensors x, gate_up, down, weights and expert ids."""
        num_tokens, hidden, intermediate, num_experts, choices = self.shape
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(num_tokens, hidden, generator=generator)
        gate_up = (
            torch.randn(num_experts, 2 * intermediate, hidden, generator=generator) / hidden**0.5
        )
        down = (
            torch.randn(num_experts, hidden, intermediate, generator=generator) / intermediate**0.5
        )

        logits = torch.randn(num_tokens, num_experts, generator=generator)
        weights, expert_ids = reference.topk_gating(logits, choices, renormalise=True)
        model = [tensor.to(self.device, self.dtype) for tensor in (x, gate_up, down)]
        return (model[0], model[1], model[2], weights.to(self.device), expert_ids.to(self.device))


SHAPES = [
    (3, 32, 16, 4, 2),
    (20, 64, 40, 8, 2),
    (37, 96, 48, 5, 3),
    (1, 32, 64, 16, 8),
    (300, 40, 72, 2, 1),
]


@pytest.mark.parametrize("shape", SHAPES)
def test_experts_match_the_twin(
    device: torch.device, shape: tuple[int, int, int, int, int]
) -> None:
    tensors = Layer(shape, device, torch.float32).tensors()

    out = fused_experts(*tensors, form=SiluGlu(), biases=None)

    torch.testing.assert_close(
        out, reference.fused_experts(*tensors, form=SiluGlu(), biases=None), atol=2e-6, rtol=1e-5
    )


FORMS = [SiluGlu(), GeluTanhGlu(), ClampedGlu(slope=1.702, limit=0.5)]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", SHAPES[:3])
def test_biased_experts_of_every_form_match_the_twin(
    device: torch.device, shape: tuple[int, int, int, int, int], form: GluForm
) -> None:
    tensors = Layer(shape, device, torch.float32).tensors()
    biases = make_biases(tensors[1], tensors[2])

    out = fused_experts(*tensors, form=form, biases=biases)

    expected = reference.fused_experts(*tensors, form=form, biases=biases)
    torch.testing.assert_close(out, expected, atol=4e-6, rtol=1e-5)


@pytest.mark.parametrize("shape", [(20, 64, 40, 8, 2), (300, 40, 72, 2, 1)])
def test_experts_too_large_for_l2_match_the_twin(
    device: torch.device, shape: tuple[int, int, int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expert_inputs, "_LARGE_EXPERT_BYTES", 1)
    tensors = Layer(shape, device, torch.float32).tensors()

    out = fused_experts(*tensors, form=SiluGlu(), biases=None)

    torch.testing.assert_close(
        out, reference.fused_experts(*tensors, form=SiluGlu(), biases=None), atol=2e-6, rtol=1e-5
    )


@pytest.mark.gpu
@pytest.mark.parametrize("num_tokens", [1, 100, 300, 3000])
def test_biased_experts_are_as_exact_as_bfloat16_allows(num_tokens: int) -> None:
    layer = Layer((num_tokens, 2880, 2880, 32, 4), torch.device("cuda"), torch.bfloat16)
    x, gate_up, down, weights, expert_ids = layer.tensors()
    biases, form = make_biases(gate_up, down), FORMS[2]

    out = fused_experts(x, gate_up, down, weights, expert_ids, form=form, biases=biases)

    expected = reference.fused_experts(
        x.float(),
        gate_up.float(),
        down.float(),
        weights,
        expert_ids,
        form=form,
        biases=ExpertBiases(gate_up_EI=biases.gate_up_EI.float(), down_EC=biases.down_EC.float()),
    )
    assert (out.float() - expected).norm() / expected.norm() < 5e-3


def make_biases(gate_up: torch.Tensor, down: torch.Tensor) -> ExpertBiases:
    generator = torch.Generator().manual_seed(1)
    gate_up_EI, down_EC = (
        torch.randn(weight.shape[:2], generator=generator).to(weight.device, weight.dtype)
        for weight in (gate_up, down)
    )
    return ExpertBiases(gate_up_EI=gate_up_EI, down_EC=down_EC)


def test_biases_of_another_shape_are_refused() -> None:
    tensors = Layer((3, 32, 16, 4, 2), torch.device("cpu"), torch.float32).tensors()
    biases = ExpertBiases(gate_up_EI=torch.zeros(4, 16), down_EC=torch.zeros(4, 32))

    with pytest.raises(ValueError, match=r"expected contiguous torch.float32 \(4, 32\)"):
        fused_experts(*tensors, form=SiluGlu(), biases=biases)


def test_choices_without_an_expert_add_nothing(device: torch.device) -> None:
    x, gate_up, down, weights, expert_ids = Layer(
        (9, 32, 16, 4, 2), device, torch.float32
    ).tensors()
    kept = weights.clone()
    kept[::2, 0] = 0.0
    expected = reference.fused_experts(
        x, gate_up, down, kept, expert_ids, form=SiluGlu(), biases=None
    )
    expert_ids[::2, 0] = -1

    out = fused_experts(x, gate_up, down, weights, expert_ids.int(), form=SiluGlu(), biases=None)

    torch.testing.assert_close(out, expected, atol=2e-6, rtol=1e-5)


def test_no_tokens_give_no_rows(device: torch.device) -> None:
    tensors = Layer((0, 32, 16, 4, 2), device, torch.float32).tensors()

    assert fused_experts(*tensors, form=SiluGlu(), biases=None).shape == (0, 32)


@pytest.mark.gpu
@pytest.mark.parametrize("num_tokens", [1, 16, 100, 300, 1000, 3000])
@pytest.mark.parametrize("layer", [(2048, 768, 128, 8), (1024, 1408, 8, 2), (200, 72, 6, 3)])
def test_every_bucket_is_as_exact_as_bfloat16_allows(
    num_tokens: int, layer: tuple[int, int, int, int]
) -> None:
    x, gate_up, down, weights, expert_ids = Layer(
        (num_tokens, *layer), torch.device("cuda"), torch.bfloat16
    ).tensors()

    out = fused_experts(x, gate_up, down, weights, expert_ids, form=SiluGlu(), biases=None)

    expected = reference.fused_experts(
        x.float(), gate_up.float(), down.float(), weights, expert_ids, form=SiluGlu(), biases=None
    )
    assert (out.float() - expected).norm() / expected.norm() < 5e-3


@pytest.mark.gpu
def test_a_captured_graph_follows_its_inputs() -> None:
    first = Layer((24, 256, 128, 16, 4), torch.device("cuda"), torch.bfloat16).tensors()
    x, gate_up, down, weights, expert_ids = first
    fused_experts(*first, form=SiluGlu(), biases=None)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = fused_experts(*first, form=SiluGlu(), biases=None)
    x.normal_()
    expert_ids.copy_(expert_ids.flip(0))

    graph.replay()

    assert torch.equal(
        out, fused_experts(x, gate_up, down, weights, expert_ids, form=SiluGlu(), biases=None)
    )


def test_buckets_cover_every_number_of_rows() -> None:
    rows = [
        choose_tiles(pairs, 128, torch.bfloat16).block_rows
        for pairs in (1, 1024, 4096, 16384, 1 << 20)
    ]

    assert rows == sorted(rows)
    assert rows[0] == 16


def test_bad_inputs_are_refused() -> None:
    x, gate_up, down, weights, ids = Layer(
        (3, 32, 16, 4, 2), torch.device("cpu"), torch.float32
    ).tensors()

    for tensors in [
        (x.double(), gate_up, down, weights, ids),
        (x, gate_up.bfloat16(), down, weights, ids),
        (x, gate_up[:, :-2], down, weights, ids),
        (x[:, :-1], gate_up, down, weights, ids),
        (x, gate_up, down[0], weights, ids),
        (x, gate_up, down.transpose(1, 2).contiguous().transpose(1, 2), weights, ids),
        (x, gate_up, down, weights.double(), ids),
        (x, gate_up, down, weights, ids[1:]),
        (x[:, :6], gate_up[:, :, :6].contiguous(), down[:, :6].contiguous(), weights, ids),
    ]:
        with pytest.raises(ValueError, match="expected"):
            fused_experts(*tensors, form=SiluGlu(), biases=None)
