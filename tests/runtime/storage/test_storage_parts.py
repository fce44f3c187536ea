"""Headers, namespaces, the LRU by bytes, the fake's faults, and making backends."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raydix.errors import AccountingError
from raydix.ids import PageKey
from raydix.kernels.pages.page_codec import Codec
from raydix.runtime.config.kv_layout import KvLayout
from raydix.runtime.messages.host import ObjectStatus
from raydix.runtime.storage.backend import ObjectName, ObjectRef
from raydix.runtime.storage.backends.fake import FakeBackend, Faults
from raydix.runtime.storage.capacity.stored_objects import StoredObjects
from raydix.runtime.storage.namespace import make_namespace
from raydix.runtime.storage.worker.object_header import ObjectIdentity, fill_header, verify_object
from tests.runtime.storage.stores import GROUP, LAYOUT, Bench, FakeStore

IDENTITY = ObjectIdentity(b"n" * 8, 1, PageKey(b"k" * 32))


def test_header_names_what_differs() -> None:
    page = memoryview(bytearray(64 + 100))
    fill_header(page, IDENTITY)
    assert verify_object(page, IDENTITY) is ObjectStatus.OK
    assert verify_object(page, replace(IDENTITY, codec=Codec.INT8)) is ObjectStatus.WRONG_CODEC
    assert verify_object(page, replace(IDENTITY, group=0)) is ObjectStatus.WRONG_KEY
    assert verify_object(page[:-1], IDENTITY) is ObjectStatus.WRONG_LENGTH
    assert verify_object(page[:63], IDENTITY) is ObjectStatus.TOO_SHORT


@settings(max_examples=200)
@given(payload=st.binary(max_size=64), flip=st.integers(0, 10**6))
def test_any_flipped_bit_is_found(payload: bytes, flip: int) -> None:
    page = memoryview(bytearray(64) + payload)
    fill_header(page, IDENTITY)
    bit = flip % (8 * len(page))
    page[bit // 8] ^= 1 << bit % 8
    is_reserved = bit // 8 in (14, 15)
    assert (verify_object(page, IDENTITY) is ObjectStatus.OK) == is_reserved


def test_every_field_changes_the_namespace() -> None:
    bf16 = KvLayout(page_size=4, dtype="bfloat16", dtype_bytes=2, groups=(GROUP,))
    layouts = [LAYOUT, bf16, replace(LAYOUT, page_size=8), replace(LAYOUT, version=2)]
    layouts += [
        replace(LAYOUT, groups=(replace(GROUP, **change),))
        for change in ({"head_dim": 6}, {"layers": (0, 2)})
    ]
    layouts += [replace(LAYOUT, groups=(GROUP, GROUP))]
    layouts += [replace(LAYOUT, codec=codec, page_size=16) for codec in Codec]
    namespaces = [make_namespace(b"m", "v", layout) for layout in layouts]
    namespaces += [make_namespace(b"mv", "", LAYOUT), make_namespace(b"m", "w", LAYOUT)]
    assert len({namespace.digest for namespace in namespaces}) == len(namespaces)
    assert make_namespace(b"m", "v", LAYOUT).digest == namespaces[0].digest
    assert len(namespaces[0].hex) == 16


@settings(max_examples=200)
@given(
    st.lists(
        st.tuples(st.sampled_from("dutrw"), st.integers(0, 9), st.integers(1, 40)), max_size=60
    )
)
def test_lru_keeps_within_its_bound_and_gives_up_the_least_recently_used(
    steps: list[tuple[str, int, int]],
) -> None:
    lru, order, reserved = StoredObjects(100), {}, []
    for action, number, size in steps:
        name = str(number)
        victims: dict[str, int] = {}
        match action:
            case "r":
                sizes = [size, number, 30]
                num_fitting, victims = lru.reserve(sizes)
                reserved += sizes[:num_fitting]
                assert num_fitting == 3 or sum(reserved) + sizes[num_fitting] > 100
            case "w" if reserved:
                lru.release(reserved[0])
                lru.add({name: reserved[0]})
                order.pop(name, None)
                order[name] = reserved.pop(0)
            case "d":
                lru.remove(name)
                order.pop(name, None)
            case "u":
                assert lru.touch([name]) == ([] if name in order else [name])
                if name in order:
                    order[name] = order.pop(name)
            case "t":
                victims = lru.trim()

        assert list(order.items())[: len(victims)] == list(victims.items())
        for victim in victims:
            del order[victim]
        assert list(order.items()) == [(each, lru.size(each)) for each in lru.names()]
        assert lru.total_bytes + sum(reserved) <= 100
        lru.check()


def test_lru_trims_from_its_high_mark_to_its_low_one() -> None:
    lru = StoredObjects(64)
    lru.add({str(name): 1 for name in range(62)})
    assert lru.trim() == {}
    lru.add({"62": 1})
    assert lru.trim() == {"0": 1, "1": 1, "2": 1}
    assert lru.trim() == {}


def test_lru_notices_a_release_too_many() -> None:
    lru = StoredObjects(None)
    lru.release(1)
    with pytest.raises(AccountingError, match="reserved"):
        lru.check()


def test_fake_fails_and_corrupts_as_often_as_told_and_never_gives_wrong_bytes() -> None:
    faults = Faults(seed=3, max_delay_s=1e-6, failure_fraction=0.3, corrupt_fraction=0.3)
    bench = Bench(FakeStore().make(faults=faults))
    statuses = []
    for _ in range(30):
        bench.write([1, 2, 3, 4])
        statuses += bench.read([1, 2, 3, 4])
    bench.close()
    assert statuses.count(ObjectStatus.IO_ERROR) in range(20, 50)
    assert sum(status.is_bad_object for status in statuses) in range(10, 50)
    assert ObjectStatus.OK in statuses


def test_fake_times_out_what_would_take_too_long() -> None:
    slept: list[float] = []
    backend = FakeBackend(faults=Faults(max_delay_s=100.0), clock=lambda: 0.0, sleep=slept.append)
    refs = [ObjectRef(ObjectName(IDENTITY.key, 0), memoryview(bytearray(100)), 0)] * 3
    assert backend.batch_get_into(refs, 1e-9) == [ObjectStatus.TIMED_OUT] * 3
    assert slept == [1e-9] * 3, "it answers at the deadline, not before"
    assert backend.batch_put_from(refs, 100.0) == [ObjectStatus.OK] * 3
    assert len(slept) == 6
