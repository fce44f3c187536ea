"""Ranks that are plain processes with one GPU each, every one of which sees all GPUs."""

import faulthandler
import multiprocessing
import os
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch.distributed import FileStore, Store

WAIT_S = 120
Body = Callable[[Store, int, torch.device], Any]
"""What a rank does; at the top level of a module, so that a process finds it."""


def run_on_gpus(file: Path, num_ranks: int, body: Body) -> list[Any]:
    """Let every rank meet the others by `file` and do `body`.

    Returns their results in order: None of a rank that was killed. Raises RuntimeError if one
    failed.
    """
    context = multiprocessing.get_context("spawn")
    ranks = []
    for rank in range(num_ranks):
        ours, theirs = context.Pipe()
        process = context.Process(target=_be_rank, args=(theirs, file, rank, num_ranks, body))
        process.start()
        theirs.close()
        ranks.append((process, ours))

    try:
        results = [_result_of(connection) for _, connection in ranks]
    finally:
        for process, _ in ranks:
            process.join(1)
            process.kill()
            process.join()
    failures = [each for each in results if isinstance(each, _Failure)]
    if failures:
        raise RuntimeError("\n".join(each.text for each in failures))
    return results


class _Failure:
    def __init__(self, text: str) -> None:
        self.text = text


def _result_of(connection: Connection) -> Any:
    if not connection.poll(WAIT_S):
        return _Failure(f"a rank has not ended after {WAIT_S} s")
    try:
        return connection.recv()
    except EOFError:
        return None


def _be_rank(connection: Connection, file: Path, rank: int, num_ranks: int, body: Body) -> None:
    for name, value in (("NCCL_NVLS_ENABLE", "0"), ("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")):
        os.environ.setdefault(name, value)
    faulthandler.dump_traceback_later(WAIT_S // 2)
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    try:
        with torch.inference_mode():
            result = body(FileStore(str(file), num_ranks), rank, device)
    except BaseException:  # noqa: BLE001
        result = _Failure(f"rank {rank}: {traceback.format_exc()}")
    connection.send(result)
