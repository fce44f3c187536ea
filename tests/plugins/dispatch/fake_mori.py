"""A fake MORI-EP: what `mori.ops` and `mori.shmem` say of shapes, and nothing of its speed.

MORI runs on AMD GPUs alone, so that no test of this project has seen the real one. This one keeps
to what its source documents: a dispatch fills memory of world_size x max_num_inp_token_per_rank
rows that the operation owns and uses again; ids are int32 and global on arrival, too; the count of
rows lies on the device; a combine adds rows without weights, takes the sender's own ids, and resets
the count; dispatch and combine of one operation alternate.
"""

import threading
from dataclasses import dataclass
from enum import Enum
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from tests.moe.board import Board

MORI_SHMEM_INIT_WITH_UNIQUEID = 7


class EpDispatchCombineKernelType(Enum):
    """The kernels within a node, and between nodes."""

    IntraNode = 0
    InterNode = 1


@dataclass(kw_only=True)
class EpDispatchCombineConfig:
    """The part of MORI's class of this name that we use."""

    data_type: torch.dtype
    rank: int
    world_size: int
    hidden_dim: int
    scale_dim: int
    scale_type_size: int
    max_token_type_size: int
    max_num_inp_token_per_rank: int
    num_experts_per_rank: int
    num_experts_per_token: int
    kernel_type: EpDispatchCombineKernelType
    gpu_per_node: int = 8


class FakeMori:
    """The library of one process, whose ranks are threads."""

    def __init__(self, num_ranks: int) -> None:
        self._board = Board(num_ranks)
        self._own = threading.local()

    def modules(self) -> dict[str, ModuleType]:
        """The modules by the names under which the adapter imports them."""
        mori, ops, shmem = (ModuleType(name) for name in ("mori", "mori.ops", "mori.shmem"))
        ops.__dict__.update(
            EpDispatchCombineConfig=EpDispatchCombineConfig,
            EpDispatchCombineKernelType=EpDispatchCombineKernelType,
            EpDispatchCombineOp=self._make_operation,
        )
        shmem.__dict__.update(
            MORI_SHMEM_INIT_WITH_UNIQUEID=MORI_SHMEM_INIT_WITH_UNIQUEID,
            shmem_get_unique_id=lambda: bytes(range(128)),
            shmem_init_attr=self._init,
        )
        mori.__dict__.update(ops=ops, shmem=shmem)
        return {"mori": mori, "mori.ops": ops, "mori.shmem": shmem}

    def _init(self, flags: int, rank: int, num_ranks: int, unique_id: bytes) -> int:
        assert flags == MORI_SHMEM_INIT_WITH_UNIQUEID
        assert unique_id == bytes(range(128))
        self._own.num_operations = 0
        self._board.post("init", rank, num_ranks)
        return 0

    def _make_operation(self, config: EpDispatchCombineConfig) -> "FakeOperation":
        name = f"operation {self._own.num_operations}"
        self._own.num_operations += 1
        return FakeOperation(config, self._board, name)


class FakeOperation:
    """A fake `EpDispatchCombineOp`."""

    def __init__(self, config: EpDispatchCombineConfig, board: Board, name: str) -> None:
        assert config.kernel_type is EpDispatchCombineKernelType.IntraNode
        assert config.world_size <= config.gpu_per_node
        assert config.max_token_type_size >= config.data_type.itemsize
        self._config = config
        self._board = board
        self._name = name
        self._origins: list[tuple[int, int]] | None = None
        self._sent_ids: Tensor | None = None

        rows, choices = (
            config.world_size * config.max_num_inp_token_per_rank,
            (config.num_experts_per_token),
        )
        self._x = torch.full((rows, config.hidden_dim), torch.nan, dtype=config.data_type)
        self._weights = torch.full((rows, choices), torch.nan)
        self._ids = torch.zeros(rows, choices, dtype=torch.int32)
        self._count = torch.zeros(1, dtype=torch.int32)
        self._out = torch.full(
            (config.max_num_inp_token_per_rank, config.hidden_dim),
            torch.nan,
            dtype=config.data_type,
        )

    def dispatch(
        self, input: Tensor, weights: Tensor | None, scales: Tensor | None, indices: Tensor
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor, Tensor]:
        """Rows, weights, scales, ids and count, in the operation's own memory."""
        config = self._config
        assert self._origins is None, "combine comes before the next dispatch"
        assert indices.dtype == torch.int32
        assert weights is not None
        assert weights.dtype == torch.float32
        assert input.dtype == config.data_type
        assert all(each.is_contiguous() for each in (input, weights, indices))
        assert input.shape == (indices.shape[0], config.hidden_dim)
        assert weights.shape == indices.shape == (input.shape[0], config.num_experts_per_token)
        assert input.shape[0] <= config.max_num_inp_token_per_rank

        sent = self._board.post(
            f"{self._name} dispatch", config.rank, (input.clone(), weights.clone(), indices.clone())
        )
        origins = []
        for source in reversed(range(config.world_size)):
            x, row_weights, ids = sent[source]
            is_here = (ids >= 0) & (ids // config.num_experts_per_rank == config.rank)
            for token in is_here.any(1).nonzero().flatten().tolist():
                self._x[len(origins)] = x[token]
                self._weights[len(origins)] = row_weights[token]
                self._ids[len(origins)] = ids[token]
                origins.append((source, token))
        self._count.fill_(len(origins))
        self._origins, self._sent_ids = origins, indices
        return self._x, self._weights, None, self._ids, self._count

    def combine(
        self, input: Tensor, weights: Tensor | None, indices: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """The sums, in the operation's own memory."""
        config = self._config
        assert self._origins is not None, "dispatch comes first"
        assert self._sent_ids is not None
        assert weights is None
        assert input.is_contiguous()
        assert input.dtype == config.data_type
        assert input.shape[0] >= len(self._origins)
        assert torch.equal(indices, self._sent_ids), "these are not the sender's own ids"

        parts: list[Any] = self._board.post(
            f"{self._name} combine", config.rank, (input.clone(), self._origins)
        )
        sums = torch.zeros(indices.shape[0], config.hidden_dim)
        for out, origins in parts:
            for row, (source, token) in enumerate(origins):
                if source == config.rank:
                    sums[token] += out[row].float()
        self._out.fill_(torch.nan)
        self._out[: indices.shape[0]] = sums.to(config.data_type)
        self._count.zero_()
        self._origins = None
        return self._out, None
