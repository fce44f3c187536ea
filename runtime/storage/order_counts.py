"""What a storage worker has carried out, by operation and result."""

from collections import Counter
from enum import StrEnum

from raydix.runtime.messages.host import ObjectStatus


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

    def add(self, operation: Operation, statuses: bytes, object_bytes: int, seconds: float) -> None:
        """Count a batch that is answered.

        object_bytes: what was moved for each object that is OK; seconds: without waiting.
        """
        self._counts[f"{operation}_batches"] += 1
        self._seconds[operation] += seconds
        for code, num_objects in Counter(statuses).items():
            self._counts[f"{operation}_objects_{ObjectStatus(code).name.lower()}"] += num_objects
        if object_bytes:
            self._counts[f"{operation}_bytes"] += object_bytes * statuses.count(ObjectStatus.OK)

    def figures(self) -> dict[str, int | float]:
        """`OPERATION_batches`, `_seconds`, `_bytes` and `_objects_RESULT`, as far as counted."""
        return self._counts | {
            f"{operation}_seconds": seconds for operation, seconds in self._seconds.items()
        }
