"""Every number that grows for as long as an engine runs, and what happens where its type ends.

They are of three kinds.

Those which start over, as they travel in int32 columns, and pass over what is under way:

- `TransferId` (`InFlight`): below, and in test_transfers.
- Copies of experts (`ExpertBalance`): below.
- Generations of host pages (`HostPages`): test_generation_rises_whenever_a_page_changes_hands.
- Counters of ranks on devices (`kernels/pages/page_push.py`, `kernels/dispatch/token_push.py`):
  they wrap around and are compared by their difference: below; `CudaPeers` folds its count into
  int32 itself.

Those which are Python integers, and 64 bits in a message: they end after 2^63, in 292 years at one
a nanosecond. All scalars of messages: below. Among them are step numbers, leases, lookups, plans of
experts and versions of placements; those that stay in one process are connections, serials, runs,
incarnations, tickets of orders, pins, and turns.

Those in int64 columns: numbers of askings, which are refused beyond 2^63 - 1 (test_codec), and
stamps of decoding requests: below.
"""

import itertools
import math
from dataclasses import fields, is_dataclass, replace
from typing import Any, get_args, get_type_hints

import numpy as np
import pytest

from raydix.ids import LeaseId
from raydix.moe.placement import Placement
from raydix.runtime.messages import codec
from raydix.runtime.scheduler.ranks.column_ids import MAX_ID, next_id
from raydix.runtime.scheduler.ranks.expert_balance import ExpertBalance
from tests.runtime.scheduler.core_driver import CoreDriver
from tests.runtime.scheduler.ranks.test_expert_balance import SETTINGS

FAR = (2**31 - 1, 2**31, 2**32 + 1, 2**53 + 1, 2**63 - 1)


@pytest.mark.parametrize("start", [1, MAX_ID - 1, MAX_ID, MAX_ID + 1, 2**40])
def test_numbers_in_columns_fit_and_pass_over_those_in_use(start: int) -> None:
    numbers = itertools.count(start)
    in_use: list[int] = []
    for _ in range(5):
        in_use.append(next_id(numbers, in_use))
    assert len(set(in_use)) == 5
    assert all(1 <= number <= MAX_ID for number in in_use)
    again = itertools.count(start)
    assert next_id(again, in_use) not in in_use


@pytest.mark.parametrize("start", [1, 2**31 - 1, 2**31, 2**31 + 5])
def test_experts_move_for_ever(start: int) -> None:
    group = ExpertBalance(SETTINGS)
    group._copy_ids = itertools.count(start)
    current = group._migration.placement.experts_LP
    per_rank = group._initial.seats_per_rank
    wanted = current.copy()
    wanted[0, 0], wanted[0, per_rank] = current[0, per_rank], current[0, 0]
    group._due = Placement(wanted, SETTINGS.num_experts, 2)
    seen: list[int] = []
    for step in range(1, 60):
        orders = group.plan_step(step, 0.0)
        for copy_id, rank in zip(orders.copies.copy_ids, orders.copies.ranks, strict=True):
            seen.append(int(copy_id))
            group.note_copied(int(rank), orders.copies.copy_ids[orders.copies.copy_ids == copy_id])
        for rank in range(2):
            group.note_step(rank, step, np.zeros(0, dtype=np.int32))
    assert len(seen) >= 2
    assert all(1 <= copy_id <= MAX_ID for copy_id in seen)
    assert not group._migration.is_open, "all have moved"


@pytest.mark.parametrize("seen", [2**31 - 2, 2**31 - 1, -(2**31), -(2**31) + 1])
def test_counts_on_devices_are_compared_by_their_difference(seen: int) -> None:
    with np.errstate(over="ignore"):
        for ahead in range(3):
            value = np.int32((seen + ahead + 2**31) % 2**32 - 2**31)
            assert np.int32(value) - np.int32(seen) == ahead


def _int_fields(cls: type) -> list[str]:
    """Scalars of a message."""
    hints = get_type_hints(cls)
    kinds = {name: getattr(hint, "__supertype__", hint) for name, hint in hints.items()}
    return [field.name for field in fields(cls) if kinds[field.name] is int]


def _value(hint: Any) -> Any:
    """Something that a field of this type may hold."""
    hint = getattr(hint, "__supertype__", hint)
    if isinstance(hint, type) and hint in (int, float, bool, str, bytes):
        return hint()
    if type(None) in get_args(hint):
        return None
    if isinstance(hint, type) and is_dataclass(hint):
        return _filled(hint)
    if isinstance(hint, type) and hasattr(hint, "__members__"):
        return next(iter(hint))
    if getattr(hint, "__origin__", hint) is tuple:
        return ()
    if get_args(hint) and not getattr(hint, "__origin__", None):
        return _value(get_args(hint)[0])
    return np.zeros(0, dtype=np.int32)


def _filled(cls: Any) -> Any:
    hints = get_type_hints(cls)
    return cls(**{field.name: _value(hints[field.name]) for field in fields(cls)})


MESSAGES = [cls for cls in get_args(codec.Message) if _int_fields(cls)]


@pytest.mark.parametrize("cls", MESSAGES, ids=lambda cls: cls.__name__)
def test_scalars_of_messages_have_64_bits(cls: Any) -> None:
    for number in FAR:
        message = replace(_filled(cls), **dict.fromkeys(_int_fields(cls), number))
        told = codec.decode(codec.encode(message))
        assert all(getattr(told, name) == number for name in _int_fields(cls))


def test_an_engine_serves_on_when_its_numbers_outgrow_32_bits() -> None:
    driver = CoreDriver(has_host_memory=True, num_pages=(64,))
    core = driver.core
    lane = core._lanes[0]
    last = 2**31 - 3
    lane.l1.last_step = last
    lane.l1.pools.settle(last)
    lane.in_flight._ids = itertools.count(last)
    lane.batch._num_joined = last
    lane.l1.tree._eviction._order._last_ticket = last
    core._requests._serials = core._source._ids = itertools.count(last)
    core._timers._numbers = itertools.count(last)
    driver._num_askings = last

    for start in range(12):
        driver.submit([start] * 13, max_tokens=6)
        driver.run()
        driver.grant(8)
    driver.run()

    assert all(answer.tokens == [1] * 6 for answer in driver.answers.values())
    assert lane.l1.last_step > 2**31
    assert LeaseId(next(core._source._ids)) > 2**31
    assert driver.core.is_idle
    assert math.isfinite(driver.now_s)
