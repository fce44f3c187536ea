"""A page that is handed out too early is found at once, whether or not it is read too late."""

import pytest

from raydix.runtime.scheduler.request.request import RequestState
from tests.simulation.named_pages import PageInUse
from tests.simulation.workload import draw_workload, run_workload


# Loads that come to reuse such a page: that of seed 3, which goes by another policy, does not.
@pytest.mark.parametrize("seed", [4, 5, 6])
def test_pages_that_rows_on_their_way_name_are_missed(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RequestState, "has_rows_in_flight", False)
    with pytest.raises(PageInUse):
        run_workload(draw_workload(seed))
