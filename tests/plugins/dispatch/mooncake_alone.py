"""Does Mooncake EP, by its calls alone, mix up two exchanges of one buffer? By hand, on two GPUs:

    python -m tests.plugins.dispatch.mooncake_alone

Both ranks dispatch two exchanges, then combine them in the same order; experts scale their rows.
Each exchange is compared with its plain sum: through one buffer, and with a buffer each. Prints how
many were wrong, and how many of those are what the experts of the other exchange's tokens would
give. Once no release mixes them up, `BufferPerExchange` has no more use for this library.
"""

import importlib
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor

NUM_RANKS, SEATS, HIDDEN, TOP_K, TOKENS = 2, 5, 2048, 3, 24
NUM_EXPERTS = NUM_RANKS * SEATS
ROUNDS = 200
TOLERANCE = 0.02
"""The largest error, as a part of the largest value."""


def draw() -> tuple[Tensor, Tensor, Tensor]:
    """Tokens, their experts and weights."""
    x_TC = torch.randn(TOKENS, HIDDEN, device="cuda").bfloat16()
    ids_TK = torch.rand(TOKENS, NUM_EXPERTS, device="cuda").topk(TOP_K, 1).indices
    return x_TC, ids_TK, torch.rand(TOKENS, TOP_K, device="cuda")


def plain_sum(x_TC: Tensor, ids_TK: Tensor, weights_TK: Tensor, scales_E: Tensor) -> Tensor:
    rows_TKC = (x_TC.float()[:, None] * scales_E[ids_TK][..., None]).bfloat16().float()
    return (rows_TKC * weights_TK[..., None]).sum(1)


def share_of(out_TC: Tensor, x_TC: Tensor) -> Tensor:
    """How much of each token is left in what came back for it."""
    x_TC = x_TC.float()
    return (out_TC.float() * x_TC).sum(1) / (x_TC * x_TC).sum(1)


def is_close(value: Tensor, expected: Tensor, tolerance: float) -> bool:
    return bool((value - expected).abs().max() <= tolerance * expected.abs().max())


class Library:
    """One buffer of the library and its calls."""

    def __init__(self, rank: int) -> None:
        kernels = importlib.import_module("mooncake._ep")
        sys.modules.setdefault("mooncake.ep", kernels)
        library = importlib.import_module("mooncake.mooncake_ep_buffer")
        num_bytes = kernels.get_ep_buffer_size_hint(TOKENS, HIDDEN, NUM_RANKS, NUM_EXPERTS)
        self._buffer = library.Buffer(dist.group.WORLD, num_bytes)
        self._is_alive_R = torch.ones(NUM_RANKS, dtype=torch.int32, device="cuda")
        self._own = slice(rank * SEATS, (rank + 1) * SEATS)

    def dispatch(self, x_TC: Tensor, ids_TK: Tensor) -> tuple[Tensor, Any]:
        x_SPC, _, handle, _, _ = self._buffer.dispatch(
            x_TC, ids_TK, self._is_alive_R, TOKENS, NUM_EXPERTS, -1, use_fp8=False
        )
        return x_SPC, handle

    def combine(
        self, landed: tuple[Tensor, Any], ids_TK: Tensor, weights_TK: Tensor, scales_E: Tensor
    ) -> Tensor:
        x_SPC, handle = landed
        out_SPC = (x_SPC.float() * scales_E[self._own, None, None]).bfloat16()
        out_TC, _, _ = self._buffer.combine(
            out_SPC, ids_TK, weights_TK, self._is_alive_R, -1, handle
        )
        torch.cuda.synchronize()
        return out_TC


def be_rank(rank: int, meeting: str) -> None:
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", f"file://{meeting}", rank=rank, world_size=NUM_RANKS)
    torch.manual_seed(rank)
    scales_E = torch.arange(NUM_EXPERTS, device="cuda") / NUM_EXPERTS + 0.5
    first, second = Library(rank), Library(rank)
    for name, buffers in (("one buffer", (first, first)), ("a buffer each", (first, second))):
        num_wrong = num_of_other = 0
        for _ in range(ROUNDS):
            sents = [draw(), draw()]
            torch.cuda.synchronize()
            landed = [
                buffer.dispatch(x_TC, ids_TK)
                for buffer, (x_TC, ids_TK, _) in zip(buffers, sents, strict=True)
            ]
            outs = [
                buffer.combine(each, ids_TK, weights_TK, scales_E)
                for buffer, each, (_, ids_TK, weights_TK) in zip(
                    buffers, landed, sents, strict=True
                )
            ]
            for index, (out_TC, sent) in enumerate(zip(outs, sents, strict=True)):
                if is_close(out_TC.float(), plain_sum(*sent, scales_E), TOLERANCE):
                    continue
                x_TC, ids_TK, weights_TK = sent
                other_TK = sents[1 - index][1]
                is_own_TK = (other_TK[..., None] == ids_TK[:, None]).any(-1)
                of_other_T = (scales_E[other_TK] * weights_TK * is_own_TK).sum(1)
                num_wrong += 1
                num_of_other += is_close(share_of(out_TC, x_TC), of_other_T, 0.1)
        print(
            f"rank {rank}, {name}: {2 * ROUNDS} exchanges, {num_wrong} wrong, {num_of_other} of "
            "them by the other's experts",
            flush=True,
        )
    dist.barrier()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(be_rank, (str(Path(folder) / "meeting"),), NUM_RANKS)


if __name__ == "__main__":
    main()
