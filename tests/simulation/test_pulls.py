"""Nodes that pull pages from each other's L2."""

from dataclasses import replace
from typing import Any

import pytest

from raydix.ids import BatchId, ConnectionId
from raydix.runtime.cache.host.peers import Readers
from raydix.runtime.cache.host.reads import HostReads
from raydix.runtime.cache.host.settings import StorageSettings
from raydix.runtime.config.policies import LoadPolicy, PrefetchStrategy
from raydix.runtime.foresight.simulator.links import End
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.client import SubmitRequest
from raydix.runtime.messages.host import ObjectStatus
from raydix.runtime.messages.mirror import MirrorUpdate
from raydix.runtime.messages.plan import DeviceSampling
from raydix.runtime.messages.pulls import PullPages
from raydix.runtime.scheduler.settings import PrefetchSettings
from raydix.runtime.scheduler.sources.origins import Origins
from tests.simulation.checks import check_idle
from tests.simulation.client_links import Answer
from tests.simulation.cluster import Cluster
from tests.simulation.faults import Faults
from tests.simulation.grammars import expected_output
from tests.simulation.node import Node
from tests.simulation.pulls import LeasedPages, PagesRead, Pulls, SentPage
from tests.simulation.shared_l2 import draw_pulling_workload
from tests.simulation.test_mutants import Case, find
from tests.simulation.workload import BASE_SETTINGS, STORAGE, Workload, run_workload
from tests.simulation.world import World

_NUM_SEEDS = 40
_SEEDS_PER_TEST = 2
PATIENT = replace(BASE_SETTINGS, prefetch=PrefetchSettings(strategy=PrefetchStrategy.WAIT_COMPLETE))
PROMPT = [token % 7 for token in range(41)]


def two_nodes(
    faults: Faults | None = None, storage: StorageSettings | None = None, **changes: Any
) -> tuple[Cluster, Cluster]:
    """An engine on each of two nodes, with a storage of its own if any."""
    world = World(0, faults or Faults())
    settings = replace(PATIENT, **changes)
    nodes = [Node(world, settings, l2_pages=400, storage=storage) for _ in range(2)]
    first, second = map(Cluster, nodes)
    first.run_until(first.now_s + 1.0)
    return first, second


def ask(engine: Cluster, prompt: list[int]) -> Answer:
    """Send a prompt; its answer comes in a while."""
    message = SubmitRequest(
        asking=engine.client("client").next_asking(),
        request_id="a",  # type: ignore[arg-type]
        token_ids=int32_array(prompt),
        sampling=DeviceSampling(seed=0),
        max_tokens=1,
    )
    return engine.submit(message)


def serve(engine: Cluster, prompt: list[int]) -> dict[str, int]:
    """Send a prompt, and wait for the answer and its backup; returns the prompt's sources."""
    answer = ask(engine, prompt)
    engine.run(lambda: answer.ending is not None)
    engine.run_until(engine.now_s + 2.0)
    assert answer.ending == "length"
    assert answer.sources is not None
    return answer.sources


def test_what_one_node_has_computed_is_pulled_by_another() -> None:
    first, second = two_nodes()
    serve(first, PROMPT)

    sources = serve(second, PROMPT)

    assert sources == {"peer": 40, "computed:partial_page": 1}
    for node in first.world.nodes:
        check_idle(node)


def test_a_node_that_dies_in_the_middle_costs_only_what_was_missing() -> None:
    first, second = two_nodes(Faults(pull_s=0.1), replace(STORAGE, max_read_batches=1))
    serve(first, PROMPT)
    host = first.node.host_memory
    assert host is not None
    answer = ask(second, PROMPT)
    second.run(lambda: second.node.host is not None and _num_pulled(second) >= 3)

    host.kill()
    second.run_until(second.now_s + 5.0)

    assert answer.tokens == expected_output(PROMPT, 1)
    assert answer.sources is not None
    assert 0 < answer.sources["peer"] < 40
    # Its own L3 was asked for the rest.
    assert answer.sources["computed:not_found"] == 40 - answer.sources["peer"]


def _num_pulled(engine: Cluster) -> int:
    host = engine.node.host
    assert host is not None
    return host.counters["peer_reads_ok"]


def test_a_page_that_is_damaged_on_its_way_is_computed() -> None:
    first, second = two_nodes()
    serve(first, PROMPT)
    first.faults.bad_pull_fraction = 1.0

    sources = serve(second, PROMPT)

    assert sources == {"computed:bad_object": 40, "computed:partial_page": 1}


def test_computing_is_chosen_where_a_peer_was_seen_to_be_slower() -> None:
    faults = Faults(pull_s=0.01, token_s=0.001)
    auto = {"load": LoadPolicy.AUTO, "start_prefill_tokens_per_s": 1000.0}
    first, second = two_nodes(faults, **auto)
    for number in range(6):
        serve(first, [number, *PROMPT])

    sources = [serve(second, [number, *PROMPT]) for number in range(6)]

    assert "peer" in sources[0], "nothing is believed of it before it was tried"
    assert "peer" not in sources[-1]
    pull_s = second.core._source.origins.peers[0].rate.predict_s(1.0, second.now_s)
    assert pull_s > second.core._rates.prefill.predict_s(40, second.now_s)


def test_what_is_leased_is_pulled_as_what_is_sent_is() -> None:
    first, second = two_nodes(Faults(leased_fraction=1.0))
    serve(first, PROMPT)

    sources = serve(second, PROMPT)

    assert sources == {"peer": 40, "computed:partial_page": 1}
    for node in first.world.nodes:
        check_idle(node)


@pytest.mark.part
@pytest.mark.parametrize("first_seed", range(0, _NUM_SEEDS, _SEEDS_PER_TEST))
def test_nodes_that_pull_from_each_other_end_exactly(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + _SEEDS_PER_TEST):
        run_workload(draw_pulling_workload(seed))


def published_before_its_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page that is pulled is published before its checksum has been compared."""
    receive = Pulls.receive

    def receive_unseen(self: Pulls, host_page: int, sent: SentPage | None) -> ObjectStatus:
        status = receive(self, host_page, sent)
        return ObjectStatus.OK if status is ObjectStatus.BAD_CHECKSUM else status

    monkeypatch.setattr(Pulls, "receive", receive_unseen)


def published_when_ordered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages are published when they are ordered of another node, before they have come."""
    start = HostReads.start

    def start_and_publish(
        self: HostReads, lookup: Any, group: int, indices: Any, page_ids: Any, now_s: float
    ) -> None:
        start(self, lookup, group, indices, page_ids, now_s)
        for index, page_id in zip(indices, page_ids, strict=True):
            self._index.publish(page_id, lookup.keys[index])

    monkeypatch.setattr(HostReads, "start", start_and_publish)


def sent_pages_are_not_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page may make way for another one while it is being sent to another node."""
    monkeypatch.setattr(Readers, "finish", lambda self, *batch: self._sending.pop(batch))
    send = Readers._send

    def send_unpinned(self: Readers, connection: ConnectionId, message: PullPages) -> None:
        send(self, connection, message)
        self._index.unpin(self._sending[connection, message.batch_id])
        self._sending[connection, message.batch_id] = []

    monkeypatch.setattr(Readers, "_send", send_unpinned)


def leases_end_before_the_read_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader says that it has read leased pages when it begins to."""
    begin_reading = Pulls.begin_reading

    def say_and_begin(self: Pulls, peer: Any, leased: LeasedPages) -> None:
        peer.link.send(End.ACCEPTOR, PagesRead(leased.batch_id))
        begin_reading(self, peer, leased)

    def end_once(self: Pulls, number: ConnectionId, batch_id: BatchId) -> None:
        if (number, batch_id) in self._leases:
            end_lease(self, number, batch_id)

    end_lease = Pulls._end_lease
    monkeypatch.setattr(Pulls, "begin_reading", say_and_begin)
    monkeypatch.setattr(Pulls, "_end_lease", end_once)


def keys_of_one_node_count_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one node's L2 holds counts as held by whichever node came first."""
    follow = Origins.follow

    def follow_first(self: Origins, update: MirrorUpdate) -> None:
        follow(self, replace(update, source=self.peers[0].source))

    monkeypatch.setattr(Origins, "follow", follow_first)


TURNED_OVER = Workload(
    seed=0,
    settings=replace(PATIENT, num_pages=(30,), num_lanes=1),
    num_nodes=2,
    l2_pages=48,
    storage=None,
    faults=Faults(pull_s=0.01, bad_pull_fraction=0.2),
    num_requests=24,
    num_prefixes=6,
    prefix_tokens=(24, 40),
    salt_fraction=0.0,
    hint_fraction=0.0,
    num_flushes=4,
)
"""Prompts go to either node, and no L2 has room for all of them."""
LEASED = replace(TURNED_OVER, faults=replace(TURNED_OVER.faults, leased_fraction=1.0))
CASES = [
    Case(mutant=published_before_its_check, workload=TURNED_OVER),
    Case(mutant=published_when_ordered, workload=TURNED_OVER),
    Case(
        mutant=sent_pages_are_not_pinned,
        workload=replace(TURNED_OVER, l2_pages=24, faults=Faults(pull_s=0.1)),
    ),
    Case(mutant=published_before_its_check, workload=LEASED),
    Case(
        mutant=leases_end_before_the_read_has,
        workload=replace(LEASED, l2_pages=24, faults=Faults(pull_s=0.1, leased_fraction=1.0)),
    ),
    Case(mutant=keys_of_one_node_count_for_another, workload=replace(TURNED_OVER, num_nodes=3)),
]


@pytest.mark.part
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.mutant.__name__)
def test_mutant_is_found(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    find(case, monkeypatch)
