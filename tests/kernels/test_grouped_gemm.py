from dataclasses import dataclass

import pytest
import torch

pytest.importorskip("triton")

from raydix.kernels.glu_form import SiluGlu
from raydix.kernels.grouped_gemm import choose_tiles, fused_experts
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
        """x, gate_up, down, weights, expert ids."""
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


SHAPES = [(3, 32, 16, 4, 2), (20, 64, 40, 8, 2), (37, 96, 48, 5, 3), (1, 32, 64, 16, 8)]


@pytest.mark.parametrize("shape", SHAPES)
def test_experts_match_the_twin(
    device: torch.device, shape: tuple[int, int, int, int, int]
) -> None:
    tensors = Layer(shape, device, torch.float32).tensors()

    out = fused_experts(*tensors)

    torch.testing.assert_close(
        out, reference.fused_experts(*tensors, form=SiluGlu(), biases=None), atol=2e-6, rtol=1e-5
    )


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

    out = fused_experts(x, gate_up, down, weights, expert_ids.int())

    torch.testing.assert_close(out, expected, atol=2e-6, rtol=1e-5)


def test_no_tokens_give_no_rows(device: torch.device) -> None:
    tensors = Layer((0, 32, 16, 4, 2), device, torch.float32).tensors()

    assert fused_experts(*tensors).shape == (0, 32)


@pytest.mark.gpu
@pytest.mark.parametrize("num_tokens", [1, 16, 100, 300, 1000, 3000])
@pytest.mark.parametrize("layer", [(2048, 768, 128, 8), (1024, 1408, 8, 2), (200, 72, 6, 3)])
def test_every_bucket_is_as_exact_as_bfloat16_allows(
    num_tokens: int, layer: tuple[int, int, int, int]
) -> None:
    x, gate_up, down, weights, expert_ids = Layer(
        (num_tokens, *layer), torch.device("cuda"), torch.bfloat16
    ).tensors()

    out = fused_experts(x, gate_up, down, weights, expert_ids)

    expected = reference.fused_experts(
        x.float(), gate_up.float(), down.float(), weights, expert_ids, form=SiluGlu(), biases=None
    )
    assert (out.float() - expected).norm() / expected.norm() < 5e-3


@pytest.mark.gpu
def test_a_captured_graph_follows_its_inputs() -> None:
    first = Layer((24, 256, 128, 16, 4), torch.device("cuda"), torch.bfloat16).tensors()
    x, gate_up, down, weights, expert_ids = first
    fused_experts(*first)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = fused_experts(*first)
    x.normal_()
    expert_ids.copy_(expert_ids.flip(0))

    graph.replay()

    assert torch.equal(out, fused_experts(x, gate_up, down, weights, expert_ids))


def test_buckets_cover_every_number_of_rows() -> None:
    rows = [
        choose_tiles(slots, 128, torch.bfloat16).block_rows
        for slots in (1, 1024, 4096, 16384, 1 << 20)
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
            fused_experts(*tensors)
