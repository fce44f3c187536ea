"""Ranks that are plain processes with one GPU each, every one of which sees all GPUs."""

import faulthandler
import multiprocessing
import os
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
from torch.distributed import FileStore, Store

NUM_RANKS = int(os.environ.get("RAYDIX_TEST_RANKS", "2"))
"""The number of ranks, set by `--ranks`."""
WAIT_S = 120
PEERS_WAIT_S = 5
"""How long a rank may go on once another has failed: it may wait for that one for ever."""
Body = Callable[[Store, int, torch.device], Any]
"""What a rank does; at the top level of a module, so that a process finds it."""


def run_on_gpus(file: Path, body: Body, num_ranks: int = NUM_RANKS) -> list[Any]:
    """Let every rank meet the others by `file` and do `body`.

    Returns their results in order: None of a rank that was killed. Raises RuntimeError if one
    failed, soon after it has.
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
        results = results_of([connection for _, connection in ranks], WAIT_S, PEERS_WAIT_S)
    finally:
        for process, _ in ranks:
            process.join(1)
            process.kill()
            process.join()
    failures = [each.text for each in results if isinstance(each, Failure)]
    if failures:
        raise RuntimeError("\n".join(failures))
    return results


@dataclass(frozen=True)
class Failure:
    """How a rank failed, in words."""

    text: str


def results_of(connections: Sequence[Connection], wait_s: float, peers_wait_s: float) -> list[Any]:
    """What each rank sends, None if it ends without: whichever is first may be waited for last."""
    results: dict[Connection, Any] = {}
    until_s = time.monotonic() + wait_s
    while len(results) < len(connections):
        missing = [each for each in connections if each not in results]
        ready = wait(missing, max(until_s - time.monotonic(), 0))
        if not ready:
            break
        for connection in missing:
            if connection in ready:
                results[connection] = _result_of(connection)
        if any(isinstance(each, Failure) for each in results.values()):
            until_s = min(until_s, time.monotonic() + peers_wait_s)

    return [
        results.get(each, Failure(f"rank {rank} has not ended"))
        for rank, each in enumerate(connections)
    ]


def _result_of(connection: Connection) -> Any:
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
        result = Failure(f"rank {rank}: {traceback.format_exc()}")
    connection.send(result)
