import pytest
import torch

from raydix.moe.dispatch.loopback import LOOPBACK
from raydix.moe.dispatch.protocol import DispatchForm, DispatchShape
from tests.moe.dispatch_conformance import Round, Setting, check_round, check_two_open, rounds

SHAPE = DispatchShape(
    num_ranks=1,
    seats_per_rank=6,
    hidden_size=32,
    experts_per_token=3,
    max_tokens=100,
    max_low_latency_tokens=8,
    dtype=torch.float32,
)
ROUNDS = [each for form in DispatchForm for each in rounds(SHAPE, form)]


@pytest.mark.parametrize("each", ROUNDS, ids=lambda each: f"{each.sizes.form.name}: {each.name}")
def test_tokens_come_back_from_their_experts(each: Round) -> None:
    check_round(LOOPBACK, 0, Setting(shape=SHAPE), each)
    check_two_open(LOOPBACK, 0, Setting(shape=SHAPE), each)
