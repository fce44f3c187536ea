import torch

from raydix.ids import LogicalExpertId
from raydix.kernels.dense.glu_form import SiluGlu
from raydix.kernels.ops import ReferenceOps
from raydix.kernels.weights.rank_share import RankShare
from raydix.moe.bank import ExpertBank
from tests.plain_weights import plain_weights

HIDDEN, SIZE, NUM_EXPERTS = 4, 6, 5


def make_bank(held: list[int | None], *, bias: bool = True) -> ExpertBank:
    return ExpertBank(
        HIDDEN,
        SIZE,
        ReferenceOps(),
        num_experts=NUM_EXPERTS,
        held=[None if each is None else LogicalExpertId(each) for each in held],
        share=RankShare(),
        glu=SiluGlu(),
        bias=bias,
        weights=plain_weights(torch.device("cpu"), torch.float32),
    )


def fill(bank: ExpertBank) -> None:
    """Fill a bank as a checkpoint would: with the same wholes for every bank."""
    generator = torch.Generator()
    for number, part in enumerate(bank.weights().values()):
        generator.manual_seed(number)
        part.fill(torch.randn(part.whole_shape, generator=generator))


def output(bank: ExpertBank, seat: int) -> torch.Tensor:
    x = torch.ones(1, HIDDEN)
    out: torch.Tensor = bank(x, torch.ones(1, 1), torch.tensor([[seat]]))
    return out


def test_banks_name_the_same_wholes_wherever_experts_live() -> None:
    every = make_bank([0, 1, 2, 3, 4]).weights()
    some = make_bank([3, None, 1]).weights()

    assert {name: part.whole_shape for name, part in some.items()} == {
        name: part.whole_shape for name, part in every.items()
    }


def test_an_expert_computes_the_same_in_any_seat_of_any_bank() -> None:
    every, some = make_bank([0, 1, 2, 3, 4]), make_bank([3, None, 1])
    fill(every)
    fill(some)

    assert (some.seat_of(LogicalExpertId(3)), some.seat_of(LogicalExpertId(0))) == (0, None)
    assert torch.equal(output(some, 0), output(every, 3))
    assert torch.equal(output(some, 2), output(every, 1))


def test_an_empty_seat_holds_numbers() -> None:
    bank = make_bank([3, None, 1])

    assert all(not tensor.any() for tensor in bank.tensors(1))


def test_a_seat_takes_another_expert_at_the_same_address() -> None:
    source, bank = make_bank([0, 1, 2, 3, 4]), make_bank([3, None, 1])
    fill(source)
    address = bank.gate_up.matrix_OC.data_ptr()

    for target, whole in zip(bank.tensors(1), source.tensors(4), strict=True):
        target.copy_(whole)
    bank.hold(1, LogicalExpertId(4))

    assert bank.held == (3, 4, 1)
    assert bank.gate_up.matrix_OC.data_ptr() == address
    assert torch.equal(output(bank, 1), output(source, 4))


def test_experts_without_biases_have_no_tensors_for_them() -> None:
    assert len(make_bank([0, None], bias=False).tensors(0)) == 2
    assert not [name for name in make_bank([0, None], bias=False).weights() if "bias" in name]
