"""Rules of routing that are broken are found by the random machine, or by the faulty service."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from raydix.ids import NodeId, RequestId
from raydix.runtime.messages.kv_events import KvNews
from raydix.runtime.messages.routing import NodeReport
from raydix.runtime.routing.events import NodeEvent, NodeGone
from raydix.runtime.routing.ingress import Ingress
from raydix.runtime.routing.key_filter import KeyFilter, Words, hashed
from raydix.runtime.routing.node import Node
from raydix.runtime.routing.policies import SoonestNode
from tests.runtime.routing.faulty_service import Fault
from tests.runtime.routing.test_faulty_service import played
from tests.runtime.routing.test_ingress_machine import IngressMachine
from tests.runtime.routing.test_key_filter import FilterMachine

_QUICK = settings(
    max_examples=1_500,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    database=None,
    phases=(Phase.generate,),
)


def forget_nothing_lost(handle: Any) -> Callable[..., tuple[RequestId, ...]]:
    """The requests of a node that has gone are not told."""

    def mutant(self: Ingress, event: NodeEvent, now_s: float) -> tuple[RequestId, ...]:
        lost = handle(self, event, now_s)
        return () if isinstance(event, NodeGone) else lost

    return mutant


def keep_one_that_is_gone(handle: Any) -> Callable[..., tuple[RequestId, ...]]:
    """A node stays among those that can be asked."""

    def mutant(self: Ingress, event: NodeEvent, now_s: float) -> tuple[RequestId, ...]:
        former = self._nodes.get(event.node)
        lost = handle(self, event, now_s)
        if isinstance(event, NodeGone) and former is not None:
            self._nodes[NodeId(event.node)] = former
        return lost

    return mutant


def believe_what_was_brought(hear: Any) -> Callable[..., None]:
    """What a request was to bring counts for ever."""

    def mutant(self: Node, report: NodeReport, now_s: float) -> None:
        brought, self._brought = self._brought, []
        hear(self, report, now_s)
        self._brought = brought

    return mutant


def mix_old_keys_with_new(follow: Any) -> Callable[..., None]:
    """Keys that were not told again stay."""

    def mutant(self: Node, news: KvNews) -> None:
        if self._told is not None:
            for place, keys in self._keys.items():
                self._told.setdefault(place, keys)
        follow(self, news)

    return mutant


def remove_from_one_bucket(_: Any) -> Callable[..., None]:
    """A key that is in its second bucket cannot be removed."""

    def mutant(self: KeyFilter, words: Words) -> None:
        marks, rows = hashed(words).marks, self._buckets(hashed(words))[0]
        is_there = self._slots[rows] == marks[:, None]
        for row, places in zip(rows, is_there, strict=True):
            if places.any() and self._slots[row, places.argmax()]:
                self._slots[row, places.argmax()] = 0
                self._num_housed -= 1

    return mutant


@pytest.mark.parametrize(
    ("owner", "name", "break_rule", "machine"),
    [
        (Ingress, "handle", forget_nothing_lost, IngressMachine),
        (Ingress, "handle", keep_one_that_is_gone, IngressMachine),
        (Node, "hear", believe_what_was_brought, IngressMachine),
        (Node, "follow", mix_old_keys_with_new, IngressMachine),
        (KeyFilter, "remove", remove_from_one_bucket, FilterMachine),
    ],
)
def test_a_broken_rule_is_found(
    owner: type,
    name: str,
    break_rule: Callable[[Any], Any],
    machine: type[RuleBasedStateMachine],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(owner, name, break_rule(owner.__dict__[name]))

    with pytest.raises((AssertionError, ExceptionGroup)):
        run_state_machine_as_test(machine, settings=_QUICK)


def test_a_node_that_is_believed_though_it_is_silent_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def believe(self: Node, report: NodeReport, now_s: float) -> float:
        return report.busy_s

    monkeypatch.setattr(Node, "_wait_s", believe)
    requests = [(1 + 0.2 * number, number, 4) for number in range(50)]

    for fault in (Fault.HANG, Fault.LIAR):
        service = played(SoonestNode(), requests, [(0.0, "n0", fault)])
        assert sum(node == 0 for _, node in service.routes) > 5
