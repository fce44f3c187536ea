"""What a storage worker has carried out, by operation and result."""

from collections import Counter
from enum import StrEnum
from typing import Any

from raydix.runtime.messages.host import ObjectStatus
from raydix.runtime.metrics import TRANSFER_BOUNDS_S, Histogram


class Operation(StrEnum):
    """What HostMemory orders."""

    EXISTS = "exists"
    READ = "read"
    WRITE = "write"
    CLEAR = "clear"


class OrderCounts:
    """Owns: counts of batches and objects, bytes and seconds. Not thread-safe."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._seconds: dict[Operation, float] = dict.fromkeys(Operation, 0.0)
        self._times = {operation: Histogram(TRANSFER_BOUNDS_S) for operation in Operation}

    def add(self, operation: Operation, statuses: bytes, object_bytes: int, seconds: float) -> None:
        """Count a batch that is answered.

        object_bytes: what was moved for each object that is OK; seconds: without waiting.
        """
        self._counts[f"{operation}_batches"] += 1
        self._seconds[operation] += seconds
        self._times[operation].observe(seconds)
        num_ok = statuses.count(ObjectStatus.OK)
        found = {ObjectStatus.OK: num_ok} if num_ok == len(statuses) else Counter(statuses)
        for code, num_objects in found.items():
            self._counts[f"{operation}_objects_{ObjectStatus(code).label}"] += num_objects
        if object_bytes:
            self._counts[f"{operation}_bytes"] += object_bytes * num_ok

    def figures(self) -> dict[str, Any]:
        """`OPERATION_batches`, `_bytes` and `_objects_RESULT`, as far as counted.

        `_seconds` and `_times`, their distribution, of every operation.
        """
        seconds = {f"{operation}_seconds": total for operation, total in self._seconds.items()}
        times = {f"{operation}_times": times.figure() for operation, times in self._times.items()}
        return {**self._counts, **seconds, **times}
