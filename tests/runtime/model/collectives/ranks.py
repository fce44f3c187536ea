"""Ranks of one lane, as threads of this process or as processes, on the cpu or one GPU each."""

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from raydix.runtime.model.collectives.meeting import meet
from raydix.runtime.model.collectives.protocol import Collectives

WAIT_S = 120
Body = Callable[[Collectives, torch.device], Any]
"""What a rank does; at the top level of a module, so that a process finds it."""


@dataclass(frozen=True, kw_only=True)
class Lane:
    """How the ranks are made."""

    size: int
    device: str = "cpu"
    are_processes: bool = False
    dtype: torch.dtype = torch.float32

    def run(self, file: Path, body: Body) -> list[Any]:
        """Let every rank meet the others by `file` and do `body`; returns its results, in order."""
        context = multiprocessing.get_context("spawn")
        pool = (
            ProcessPoolExecutor(self.size, mp_context=context)
            if self.are_processes
            else ThreadPoolExecutor(self.size)
        )
        with pool:
            futures = [pool.submit(_be_rank, self, rank, file, body) for rank in range(self.size)]
            return [future.result(WAIT_S) for future in futures]


def _be_rank(lane: Lane, rank: int, file: Path, body: Body) -> Any:
    device = torch.device("cpu")
    if lane.device == "cuda":
        device = torch.device("cuda", rank)
        torch.cuda.set_device(device)
    collectives = meet(file, rank, lane.size, device=device, dtype=lane.dtype)
    try:
        with torch.inference_mode():
            return body(collectives, device)
    finally:
        collectives.close()
