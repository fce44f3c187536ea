import torch

from raydix.moe.dispatch.protocol import DispatchShape, DispatchSizes
from raydix.moe.dispatch.shaped import ShapedDispatcher
from raydix.moe.dispatch.transport import Transport

META = torch.device("meta")


def test_as_many_rows_arrive_as_all_ranks_send_and_own_tokens_come_back() -> None:
    shape = DispatchShape(
        num_ranks=3,
        seats_per_rank=4,
        hidden_size=256,
        experts_per_token=2,
        max_tokens=8,
        max_low_latency_tokens=8,
        dtype=torch.bfloat16,
        transport=Transport.FP8,
    )
    sent_TB = torch.empty(2, shape.sent_size, dtype=torch.uint8, device=META)
    weights_TK = torch.empty(2, 2, device=META)

    exchange = ShapedDispatcher(shape).send(
        sent_TB, weights_TK, weights_TK.int(), DispatchSizes((2, 0, 5))
    )

    received = exchange.receive()
    assert (received.x_NC.shape, received.x_NC.dtype) == ((7, shape.sent_size), torch.uint8)
    assert (received.weights_NK.shape, received.weights_NK.dtype) == ((7, 2), torch.float32)
    assert (received.local_ids_NK.shape, received.local_ids_NK.dtype) == ((7, 2), torch.int32)
    exchange.send_back(torch.empty(7, 256, dtype=torch.bfloat16, device=META))
    out_TC = exchange.combine()
    assert (out_TC.shape, out_TC.dtype) == ((2, 256), torch.bfloat16)
