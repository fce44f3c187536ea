"""What a scripted storage actor holds, and what becomes of its orders."""

from collections.abc import Collection

from raydix.ids import PageKey
from raydix.runtime.cache.page_key import split_keys
from raydix.runtime.messages.host import (
    AskExists,
    DeleteObjects,
    ObjectStatus,
    ReadObjects,
    WriteObjects,
)

ObjectOrder = AskExists | ReadObjects | WriteObjects | DeleteObjects


class ScriptedObjects:
    """Owns: what storage answers for each key: OK, or how it fails; absent keys are MISSING."""

    def __init__(self, num_groups: int) -> None:
        self.by_group: list[dict[PageKey, ObjectStatus]] = [{} for _ in range(num_groups)]

    def carry_out(self, order: ObjectOrder, cancelled: Collection[int]) -> list[ObjectStatus]:
        """Do what is ordered; what storage answers. `cancelled`: the batches that were called off,
        but too late.
        """
        statuses = self._do(order)
        is_cancelled = order.batch_id in cancelled
        return [ObjectStatus.CANCELLED] * len(statuses) if is_cancelled else statuses

    def _do(self, order: ObjectOrder) -> list[ObjectStatus]:
        if isinstance(order, DeleteObjects):
            for objects in self.by_group:
                objects.clear()
            return [ObjectStatus.OK]

        objects, keys = self.by_group[order.group], split_keys(order.keys)
        if isinstance(order, WriteObjects):
            return [objects.setdefault(key, ObjectStatus.OK) for key in keys]
        found = [objects.get(key, ObjectStatus.MISSING) for key in keys]
        if isinstance(order, ReadObjects):
            return found
        is_missing = [status is ObjectStatus.MISSING for status in found]
        return [ObjectStatus.MISSING if missing else ObjectStatus.OK for missing in is_missing]
