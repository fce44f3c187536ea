from dataclasses import replace

import pytest
import torch

from raydix.moe.dispatch import choose
from raydix.moe.dispatch.choose import MEASURED_US, fastest, winners
from raydix.moe.dispatch.fastest import FastestDispatcher
from raydix.moe.dispatch.loopback import LOOPBACK
from raydix.moe.dispatch.protocol import DispatchForm, DispatchShape, DispatchSizes
from tests.moe.dispatch_conformance import Setting, check_round, rounds

TIMES = {
    ranks: {
        form: {16: {first: 1.0, second: 2.0}, 512: {first: 9.0, second: 8.0}}
        for form in DispatchForm
    }
    for ranks, first, second in ((2, "one", "two"), (4, "two", "one"))
}


@pytest.fixture(autouse=True)
def measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "MEASURED_US", TIMES)


@pytest.mark.parametrize(
    ("num_tokens", "wanted"), [(0, "one"), (16, "one"), (17, "two"), (512, "two"), (9999, "two")]
)
@pytest.mark.parametrize("form", list(DispatchForm))
def test_the_smallest_bucket_that_holds_the_tokens_decides(
    form: DispatchForm, num_tokens: int, wanted: str
) -> None:
    assert fastest(form, num_tokens, {"one", "two"}, 2) == wanted
    assert winners({"one", "two"}, 2) == {"one", "two"}


@pytest.mark.parametrize(
    ("num_ranks", "wanted"), [(1, "one"), (2, "one"), (3, "one"), (4, "two"), (8, "two")]
)
def test_the_most_ranks_that_were_measured_decide(num_ranks: int, wanted: str) -> None:
    assert fastest(DispatchForm.NORMAL, 1, {"one", "two"}, num_ranks) == wanted


def test_what_is_not_there_is_not_taken() -> None:
    assert fastest(DispatchForm.NORMAL, 1, ["two"], 2) == "two"
    assert winners(["two"], 2) == {"two"}


def test_what_was_never_measured_comes_last() -> None:
    assert fastest(DispatchForm.NORMAL, 1, ["another", "two"], 2) == "two"
    assert fastest(DispatchForm.NORMAL, 1, ["new", "another"], 2) == "another"


def test_every_bucket_has_times() -> None:
    for measured in MEASURED_US.values():
        assert set(measured) == set(DispatchForm)
        assert all(times for buckets in measured.values() for times in buckets.values())


class Counted:
    """Loopback that counts its exchanges."""

    def __init__(self, *captured_forms: DispatchForm) -> None:
        self.captured_forms = frozenset(captured_forms)
        self.num_sent = 0
        self.is_closed = False

    def send(
        self, x: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor, sizes: DispatchSizes
    ) -> object:
        self.num_sent += 1
        return LOOPBACK.send(x, weights, ids, sizes)

    def close(self) -> None:
        self.is_closed = True


def test_each_exchange_takes_the_fastest_backend_for_its_size() -> None:
    shape = DispatchShape(
        num_ranks=1,
        seats_per_rank=6,
        hidden_size=32,
        experts_per_token=3,
        max_tokens=100,
        max_low_latency_tokens=8,
        dtype=torch.float32,
    )
    small, large = Counted(*DispatchForm), Counted(DispatchForm.LOW_LATENCY)
    dispatcher = FastestDispatcher({"one": small, "two": large})
    [each, *_] = rounds(shape, DispatchForm.NORMAL)

    for num_tokens in (1, 16, 17, 100, 100):
        sizes = replace(each.sizes, tokens_R=(num_tokens,))
        check_round(dispatcher, 0, Setting(shape=shape), replace(each, sizes=sizes))
    dispatcher.close()

    assert (small.num_sent, large.num_sent) == (2, 3)
    assert dispatcher.captured_forms == {DispatchForm.LOW_LATENCY}
    assert small.is_closed
    assert large.is_closed
