"""Requests begin at one engine and go on at another, whoever dies meanwhile; mutants are found."""

from dataclasses import replace
from typing import Any

import pytest

from raydix.ids import AskingId, ClientId, RequestId
from raydix.runtime.api.waiting_hints import WaitingHints
from raydix.runtime.cache.page_pools import no_pages
from raydix.runtime.cache.standing import Over
from raydix.runtime.messages.arrays import Int32Array, int32_array
from raydix.runtime.messages.client import (
    AbortRequest,
    ExpectRequest,
    FinishReason,
    RetainSession,
    SubmitRequest,
)
from raydix.runtime.messages.plan import DeviceSampling
from raydix.runtime.messages.retention import Retention, RetentionKind
from raydix.runtime.scheduler.life.arrivals import Arrivals
from raydix.runtime.scheduler.life.hand_overs import HandOvers
from raydix.runtime.scheduler.request.request import RequestState
from raydix.runtime.scheduler.request.transfers import Promotion
from raydix.runtime.scheduler.settings import SchedulerSettings
from raydix.runtime.scheduler.steps import step_results
from tests.simulation.client_links import Answer
from tests.simulation.cluster import Cluster
from tests.simulation.faults import Faults
from tests.simulation.node import Node
from tests.simulation.shared_l2 import draw_pulling_workload, draw_shared_workload
from tests.simulation.test_mutants import SMALL_L1, Case, find
from tests.simulation.workload import BASE_SETTINGS, Workload, run_workload
from tests.simulation.world import World

PROMPT = int32_array([token % 7 for token in range(74)])
DEATHS = Workload(
    seed=0,
    settings=replace(SMALL_L1, num_lanes=1),
    num_engines=2,
    l2_pages=40,
    storage=None,
    faults=Faults(copy_s=0.1, link_delay_s=0.0005, reconnect_s=0.5),
    num_requests=20,
    num_prefixes=6,
    prefix_tokens=(24, 40),
    max_output_tokens=8,
    hand_over_fraction=0.8,
    abort_fraction=0.2,
    num_rank_kills=4,
    num_host_kills=2,
    num_scheduler_kills=4,
    num_client_flaps=4,
)
"""Whoever has a part in a hand-over dies while copies are under way."""


def waits_know_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request goes on when L2 has its pages, and never if L2 is lost or has no room for them."""

    def tell(self: HandOvers, now_s: float) -> None:
        for each in list(self._requests.leaving.values()):
            if each.is_complete(self._view.keys):
                self._answer(each, FinishReason.HANDED_OVER)

    monkeypatch.setattr(HandOvers, "tell", tell)


def leavers_outlive_their_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a client that is gone has begun is kept until L2 has it."""

    def keep(self: HandOvers, client_id: ClientId) -> None:
        """Nobody is dropped here."""

    monkeypatch.setattr(HandOvers, "drop_all", keep)


def leavers_count_as_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that goes on elsewhere ends as one that has all of its tokens."""
    reason_of = step_results._finish_reason

    def reason(request: RequestState, token_id: int) -> FinishReason | None:
        found = reason_of(request, token_id)
        return FinishReason.LENGTH if found is FinishReason.HANDED_OVER else found

    monkeypatch.setattr(step_results, "_finish_reason", reason)


def reservations_outlive_their_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was reserved for a request stays so when that has come, or will not."""

    def end(self: Arrivals, client_id: ClientId, asking: AskingId | None) -> None:
        self._expected.pop((client_id, asking), None)

    monkeypatch.setattr(Arrivals, "end", end)


def reservations_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages that are reserved are nobody's as far as the Scheduler counts."""
    monkeypatch.setattr(Promotion, "num_private_pages", lambda self, group: len(self.part[group]))


def reservations_are_not_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is reserved and was not loaded is lost when a reservation ends."""
    monkeypatch.setattr(Promotion, "drop_reserved", lambda self: no_pages(len(self.part)))


CASES = [
    Case(mutant=mutant, workload=DEATHS)
    for mutant in (
        waits_know_no_end,
        leavers_outlive_their_client,
        leavers_count_as_complete,
        reservations_outlive_their_request,
        reservations_are_not_counted,
        reservations_are_not_given_back,
    )
]


@pytest.mark.part
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.mutant.__name__)
def test_mutant_is_found(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    find(case, monkeypatch)


@pytest.mark.part
@pytest.mark.parametrize("seed", range(6))
def test_whoever_dies_in_a_hand_over_tokens_are_exact_and_nothing_is_held(seed: int) -> None:
    run_workload(replace(DEATHS, seed=seed))


@pytest.mark.part
@pytest.mark.parametrize("seed", range(3))
def test_split_requests_end_exactly_in_any_world(seed: int) -> None:
    for draw in (draw_shared_workload, draw_pulling_workload):
        run_workload(replace(draw(seed), hand_over_fraction=0.8))


def two_engines(settings: SchedulerSettings = BASE_SETTINGS) -> tuple[Cluster, Cluster]:
    """Two engines of one node, and so of one L2."""
    node = Node(World(0, Faults()), settings, l2_pages=64, storage=None)
    return Cluster(node), Cluster(node)


def begun_at(first: Cluster, prompt: Int32Array = PROMPT, max_tokens: int = 4) -> Answer:
    """A request of which this engine is asked for the first token."""
    message = SubmitRequest(
        asking=first.client("client").next_asking(),
        request_id=RequestId("a"),
        token_ids=prompt,
        sampling=DeviceSampling(seed=0),
        max_tokens=max_tokens,
        goes_on_elsewhere=True,
    )
    return first.submit(message)


def foretold_to(second: Cluster, within_s: float = 60.0) -> AskingId:
    """Tell an engine what it is to go on with."""
    link = second.client("client")
    asking = link.next_asking()
    link.expect(ExpectRequest(asking=asking, token_ids=PROMPT, within_s=within_s))
    return asking


def gone_on_at(second: Cluster, begun: Answer, expected_as: AskingId | None = None) -> Answer:
    """Ask an engine for the rest of a request, and wait for it."""
    rest = second.submit(
        replace(
            begun.submit,
            asking=second.client("client").next_asking(),
            known_output=int32_array(begun.tokens),
            goes_on_elsewhere=False,
            expected_as=expected_as,
        )
    )
    second.run(lambda: rest.ending is not None)
    return rest


def num_reserved(cluster: Cluster) -> int:
    return cluster.core.stats()["l1_reserved_pages"]


def test_the_second_engine_computes_only_the_last_page() -> None:
    first, second = two_engines()
    begun = begun_at(first, PROMPT[:42])
    first.run(lambda: begun.ending is not None)
    rest = gone_on_at(second, begun)

    assert (begun.ending, rest.ending) == ("handed_over", "length")
    assert rest.sources == {"l2": 40, "computed:partial_page": 2}


class _Told:
    """The engines of a client, as what waits for them sees them."""

    def __init__(self, *clusters: Cluster) -> None:
        self.up = [cluster.client("client") for cluster in clusters]

    def tell_all(self, hint: RetainSession) -> None:
        for link in self.up:
            link.retain(hint)


def is_over_after_a_hint(*, hold: bool) -> bool:
    """Whether the second engine lets pages go first of a session that was said to end too soon.

    That is while the first one computes the prompt of its last request.
    """
    node = Node(World(0, Faults()), BASE_SETTINGS, l2_pages=64, storage=None)
    first, second = Cluster(node), Cluster(node)
    open_names = {RequestId("split")}
    hints = WaitingHints(open_names.__contains__)
    told = _Told(first, second)

    def serve(cluster: Cluster, **fields: Any) -> Answer:
        message = SubmitRequest(
            asking=cluster.client("client").next_asking(),
            request_id=RequestId("split"),
            token_ids=int32_array([place % 7 for place in range(42)]),
            sampling=DeviceSampling(seed=0),
            max_tokens=4,
            session_id="s",
            **fields,
        )
        hints.note_asked(message)
        return cluster.submit(message)

    begun = serve(first, goes_on_elsewhere=True)
    end = Retention(kind=RetentionKind.END)
    hint = RetainSession(session_id="s", cache_salt=None, retention=end)
    if not hold or not hints.hold_back(hint):
        told.tell_all(hint)
    first.run(lambda: begun.ending is not None)
    rest = serve(second, known_output=int32_array(begun.tokens))
    hints.tell_due(told)
    first.run(lambda: rest.ending is not None)
    open_names.clear()
    hints.note_released(RequestId("split"), told)
    passed: list[bool] = []
    second.after(0.5, lambda: passed.append(True))
    second.run(lambda: bool(passed))

    assert (begun.ending, rest.ending, len(hints)) == ("handed_over", "length", 0)
    assert rest.sources == {"l2": 40, "computed:partial_page": 2}
    nodes = [each for lane in second.core._lanes for each in lane.l1.tree.forest]
    return any(isinstance(each.standing, Over) for each in nodes)


def test_a_hint_that_comes_while_a_prompt_is_computed_apart_holds_where_the_request_ends() -> None:
    assert is_over_after_a_hint(hold=True)
    # Told at once, the second engine has no request of the session yet.
    assert not is_over_after_a_hint(hold=False)


def test_what_is_foretold_is_in_l1_before_it_comes() -> None:
    first, second = two_engines()
    asking = foretold_to(second)
    second.run(lambda: num_reserved(second) == 18)
    second.core.check()
    begun = begun_at(first)
    # Pages come as they are committed, not after the last one.
    second.run(lambda: 0 < second.count("promoted_pages") < 18)
    assert begun.ending is None
    first.run(lambda: begun.ending is not None)
    second.run(lambda: second.count("promoted_pages") == 18)
    assert num_reserved(second) == 18, "now in the tree, and locked"

    rest = gone_on_at(second, begun, asking)

    assert rest.ending == "length"
    assert rest.sources == {"l1": 72, "computed:partial_page": 2}
    assert num_reserved(second) == 0
    second.core.check()


@pytest.mark.parametrize("why", ["time", "abort", "client", "host"])
def test_what_never_comes_keeps_nothing(why: str) -> None:
    _, second = two_engines()
    asking = foretold_to(second, within_s=5.0)
    second.run(lambda: num_reserved(second) > 0)
    link = second.client("client")
    match why:
        case "abort":
            link.expect(AbortRequest(asking=asking, request_id=RequestId("a")))
        case "client":
            link.vanish()
        case "host":
            second.node.host_memory.kill()
    second.run(lambda: num_reserved(second) == 0, limit_s=6.0)
    assert (second.now_s >= 5.0) == (why == "time")
    second.core.check()


def test_a_reservation_gives_way_to_whoever_has_no_room_without() -> None:
    _, second = two_engines(replace(BASE_SETTINGS, num_lanes=1, num_pages=(24,)))
    foretold_to(second)
    second.run(lambda: num_reserved(second) > 0)
    other = replace(
        begun_at(second, max_tokens=8).submit,
        asking=second.client("client").next_asking(),
        request_id=RequestId("b"),
        token_ids=int32_array([(5 * token) % 11 for token in range(80)]),
        goes_on_elsewhere=False,
    )
    answer = second.submit(other)
    second.run(lambda: answer.ending is not None)
    assert answer.ending == "length"
    assert num_reserved(second) == 0
