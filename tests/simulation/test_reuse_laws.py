"""The laws of reuse catch a tier that is not used again, and the engine keeps them."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from raydix.ids import HostPageId, PageKey
from raydix.runtime.cache.host.answer_times import AnswerTimes
from raydix.runtime.cache.host.storage_orders import StorageOrders
from raydix.runtime.cache.host.unwritten import UnwrittenPages
from raydix.runtime.config.policies import LoadPolicy
from raydix.runtime.routing.predictors import TimePredictor
from raydix.runtime.scheduler.life import room
from tests.simulation.cluster import Cluster
from tests.simulation.faults import Faults
from tests.simulation.layouts import FULL_AND_WINDOW
from tests.simulation.node import Node
from tests.simulation.quiet_end import QuietEnd
from tests.simulation.reuse_laws import Law, Name, Probe, check_reuse, has_made_way
from tests.simulation.test_mutants import FROM_STORAGE, Case, find
from tests.simulation.workload import BASE_SETTINGS, Workload
from tests.simulation.world import World

QUIET_END = Workload(
    seed=0,
    settings=replace(FROM_STORAGE, num_lanes=1),
    num_requests=8,
    salt_fraction=0.0,
    has_quiet_end=True,
)


def probes_of(law: Law, *sources: dict[str, int]) -> Sequence[Probe]:
    return [Probe(law=law, num_expected=8, sources=each) for each in sources]


@pytest.mark.parametrize("law", [Law.STORED, Law.FORKED])
def test_tokens_that_a_tier_has_and_nobody_finds_break_the_law(law: Law) -> None:
    check_reuse(probes_of(law, {"l3": 4, "l1": 3, "computed:last_token": 1}), LoadPolicy.ALWAYS)
    with pytest.raises(AssertionError, match="found 4 of 8"):
        check_reuse(probes_of(law, {"l3": 4, "computed:not_found": 5}), LoadPolicy.ALWAYS)


def test_found_tokens_may_be_computed_only_where_that_is_a_choice() -> None:
    probes = probes_of(Law.STORED, {"computed:recompute_cheaper": 8})

    check_reuse(probes, LoadPolicy.AUTO)
    with pytest.raises(AssertionError, match="found 0 of 8"):
        check_reuse(probes, LoadPolicy.ALWAYS)


def test_pages_without_room_in_l2_are_excused_only_behind_those_that_were_not_loaded() -> None:
    no_room = {"computed:no_host_page": 4}

    check_reuse(probes_of(Law.STORED, {"computed:recompute_cheaper": 4} | no_room), LoadPolicy.AUTO)
    with pytest.raises(AssertionError, match="found 4 of 8"):
        check_reuse(probes_of(Law.STORED, {"l3": 4} | no_room), LoadPolicy.AUTO)


def test_a_missing_window_is_excused_only_where_l2_had_no_room_behind_what_was_not_loaded() -> None:
    cheaper, no_room = {"computed:recompute_cheaper": 4}, {"computed:no_host_page": 1}
    no_window = {"computed:no_window": 3}

    check_reuse(probes_of(Law.STORED, cheaper | no_window | no_room), LoadPolicy.AUTO)
    for sources in (cheaper | no_window, {"l3": 4} | no_window | no_room):
        with pytest.raises(AssertionError, match="found 4 of 8"):
            check_reuse(probes_of(Law.STORED, sources), LoadPolicy.AUTO)


def test_sixth_hit_that_is_computed_instead_of_loaded_breaks_the_law() -> None:
    recomputed = {"computed:recompute_cheaper": 8}

    check_reuse(probes_of(Law.LOADED, *5 * [recomputed], {"l2": 8}), LoadPolicy.AUTO)
    with pytest.raises(AssertionError, match="6 of 6 hits"):
        check_reuse(probes_of(Law.LOADED, *6 * [recomputed]), LoadPolicy.AUTO)


def name_of(group: int, letter: str) -> Name:
    return group, PageKey(letter.encode() * 32)


def test_pages_made_way_only_where_l2_had_them_and_all_of_their_group_came_later() -> None:
    first, second = HostPageId(0), HostPageId(1)
    needed = {name_of(0, "a"), name_of(1, "a")}
    former = {(first, 1): name_of(0, "x"), (second, 1): name_of(1, "x")}
    came_back = {(first, 2): name_of(0, "x"), (second, 2): name_of(1, "a")}
    is_older = came_back | {(first, 1): name_of(0, "x")}
    is_there = {(first, 2): name_of(0, "a"), (second, 2): name_of(1, "a")}

    assert has_made_way(needed, needed, former, came_back)
    assert not has_made_way(needed, {name_of(1, "a")}, former, came_back)
    assert not has_made_way(needed, needed, former, is_older)
    assert not has_made_way(needed, needed, former, is_there)


def test_rank_that_hung_before_the_quiet_end_takes_nothing_with_it_that_the_laws_ask_for() -> None:
    settings = replace(BASE_SETTINGS, lanes_per_group=2)
    cluster = Cluster(Node(World(3, Faults()), settings, l2_pages=256, storage=None))
    cluster.hang_rank(1)

    probes = QuietEnd(cluster, 7).run()

    assert Law.FORKED in {probe.law for probe in probes}
    check_reuse(probes, settings.load)


def storage_is_never_probed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once storage was left alone it is left alone for good."""
    monkeypatch.setattr(StorageOrders, "probe_due_s", lambda self, kind: None)


def late_answers_teach_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """How long L3 may take is learnt from the answers that are in time."""
    note = AnswerTimes.note

    def note_in_time(self: AnswerTimes, time_s: float, allowed_s: float) -> None:
        if time_s - allowed_s <= self.patience_s:
            note(self, time_s, allowed_s)

    monkeypatch.setattr(AnswerTimes, "note", note_in_time)


def writes_that_failed_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page whose writes have failed is not offered to L3 again."""
    monkeypatch.setattr(
        UnwrittenPages, "put_off", lambda self, page_id, retry_at_s: self.finish(page_id)
    )


def no_window_where_prompts_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests leave windows before the ends of their prompts, and not where these part."""
    monkeypatch.setattr(
        room,
        "places_to_return",
        lambda settings, request, known: (request.chain.num_prompt_pages,),
    )


def slow_loads_are_never_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is believed to be dearer is not done, so that nothing refutes it."""
    monkeypatch.setattr(TimePredictor, "is_worth_a_trial", lambda *arguments: False)


CASES = [
    Case(
        mutant=storage_is_never_probed,
        workload=replace(QUIET_END, faults=Faults(storage_failure_fraction=0.7)),
    ),
    Case(mutant=late_answers_teach_nothing, workload=QUIET_END),
    Case(
        mutant=writes_that_failed_are_dropped,
        workload=replace(QUIET_END, faults=Faults(storage_failure_fraction=0.5)),
    ),
    Case(
        mutant=no_window_where_prompts_part,
        workload=replace(
            QUIET_END,
            settings=replace(QUIET_END.settings, layout=FULL_AND_WINDOW, num_pages=(64, 64)),
        ),
    ),
    Case(
        mutant=slow_loads_are_never_tried,
        workload=replace(
            QUIET_END,
            settings=replace(QUIET_END.settings, load=LoadPolicy.AUTO, start_load_bytes_per_s=10e9),
        ),
    ),
]


@pytest.mark.part
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.mutant.__name__)
def test_mutant_is_found(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    find(case, monkeypatch)
