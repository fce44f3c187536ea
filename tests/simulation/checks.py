"""What must hold after every run of the simulation."""

from raydix.runtime.cache.page_key import MIRROR_KEY_BYTES
from raydix.runtime.scheduler.sources.mirror import Mirror
from tests.simulation.client_links import Answer
from tests.simulation.cluster import Cluster
from tests.simulation.grammars import expected_output, may_fail
from tests.simulation.hints import check_objects
from tests.simulation.modelled_tokens import prefix_hashes
from tests.simulation.node import Node
from tests.simulation.prompt_scores import expected_bits
from tests.simulation.stored_prefix import l2_names

_WAITS = (
    "leases_wanted",
    "lookups_open",
    "lookups_due",
    "l2_claimed_pages",
    "num_requests_waiting",
    "num_requests_leaving",
    "l1_reserved_pages",
)
"""Figures of the Scheduler that say what it waits for, ..."""
_HOLDS = ("transfers_in_flight", "l1_locked_pages", "num_requests_running")
"""... and what it holds."""
_HOST_HOLDS = (
    "leases",
    "pages_quarantined",
    "lookups",
    "pages_reading",
    "pages_staged",
    "pages_sending",
)


def check_answers(cluster: Cluster, *, first: int = 0) -> None:
    """Every answer is a prefix of what the tokens demand, complete unless ended, accounted for.

    `first`: those before it have been checked, under the faults of their time.
    """
    for answer in cluster.history[first:]:
        _check_answer(answer, cluster.settings.max_model_len)
        may_fail = cluster.faults.not_finite_fraction > 0
        assert answer.ending != "ModelFailed" or may_fail, f"{answer.asked} failed"


def _check_answer(answer: Answer, max_model_len: int) -> None:
    submit = answer.submit
    name = f"asking {submit.asking} of {answer.link.client_id}, {submit.request_id}"
    prompt = submit.token_ids.tolist()
    output = answer.output
    expected = expected_output(prompt, len(output), submit.cache_salt, submit.grammar)
    assert output == expected, f"{name}: {output} instead of {expected}"

    is_refused = answer.ending == "BadRequest"
    assert not is_refused or not answer.tokens or may_fail(submit.grammar), f"{name} is refused"

    is_refused = answer.ending == "EngineAsleep"
    assert not is_refused or not answer.tokens, f"{name} was begun, and is refused for a sleep"

    room = max_model_len - len(prompt)
    max_tokens = room if submit.max_tokens is None else min(room, submit.max_tokens)
    assert len(output) <= max_tokens
    stops = [index for index, token in enumerate(output) if token in submit.stop_token_ids]
    assert stops in ([], [len(output) - 1]), f"{name} went on after a stop token"
    if answer.ending == "length":
        assert len(output) == max_tokens, f"{name} has {len(output)} of {max_tokens} tokens"

    if answer.ending == "handed_over":
        assert submit.goes_on_elsewhere, f"{name} is to end here"
        assert len(answer.tokens) == 1, f"{name} has {len(answer.tokens)} tokens, and goes on"
        assert len(output) < max_tokens, f"{name} has all of its {max_tokens} tokens"
        assert not stops, f"{name} goes on after a stop token"

    _check_prompt_logprobs(answer, name)
    if answer.tokens or answer.ending == "abort":
        assert answer.sources is not None, f"{name} was not told where its prompt came from"
        assert sum(answer.sources.values()) == len(prompt), (
            f"{name}: {answer.sources}, {len(prompt)} tokens"
        )


def _check_prompt_logprobs(answer: Answer, name: str) -> None:
    """Check that they are the prompt's own and none is cached; with output, they are complete."""
    submit, told = answer.submit, answer.prompt_logprob_bits
    if submit.sampling.num_prompt_logprobs is None:
        assert not told, f"{name} did not ask for prompt logprobs"
        return

    prompt = submit.token_ids.tolist()
    expected = expected_bits(prefix_hashes(prompt, submit.cache_salt), len(prompt))
    assert told == expected[: len(told)], f"{name} was told logprobs of another prompt"
    if not answer.tokens:
        return
    assert len(told) == len(prompt) - 1, f"{name}: {len(told)} prompt logprobs of {len(prompt)}"
    if len(prompt) > 1:
        cached = {"l1", "l2", "peer", "l3"} & (answer.sources or {}).keys()
        assert not cached, f"{name} took pages from {cached}"


def is_told_of_objects(node: Node) -> bool:
    """Whether each Scheduler knows which objects L3 has, as far as its HostMemory does.

    A node that writes to L3 to the end tells of the last object a moment later.
    """
    if node.host_memory is None:
        return True
    assert node.host is not None
    objects = node.host._storage.objects
    return all(
        keys == {key for of, key in objects if of == group}
        for engine in node.engines
        for group, keys in enumerate(engine.core._source.view.objects._groups)
    )


def check_idle(node: Node) -> None:
    """Once all has ended nobody holds or awaits anything, and every asking is answered."""
    for engine in node.engines:
        asked = (*engine.history, *engine.hints)
        unanswered = [answer.asked for answer in asked if answer.ending is None]
        assert not unanswered, unanswered
        assert engine.num_overdue_kills == 0, "a healthy rank was killed for being late"
        _check_core(engine)
    if node.host_memory is not None:
        _check_host(node)
    check_objects(node)


def _check_core(cluster: Cluster) -> None:
    core = cluster.core
    core.check()
    stats = core.stats()
    assert core.is_idle, stats
    assert stats["ranks_attached"] == len(cluster.ranks)
    assert not any(stats[name] for name in (*_WAITS, *_HOLDS)), {
        name: stats[name] for name in (*_WAITS, *_HOLDS)
    }
    assert stats["l1_used_pages"] == stats["l1_cached_pages"]


def _check_host(node: Node) -> None:
    host = node.host
    assert host is not None
    host.check()
    figures = host.stats()
    num_granted = sum(engine.core.stats()["l2_granted_pages"] for engine in node.engines)
    assert figures["pages_filling"] == figures["pages_granted"] == num_granted, figures
    assert not any(figures[name] for name in _HOST_HOLDS), figures

    for engine in node.engines:
        source = engine.core._source
        _check_mirror(engine, source.view.keys, node)
        for group, keys in enumerate(source.view.objects._groups):
            seen = {key for of, key in host._storage.objects if of == group}
            assert keys == seen, f"{engine.name} knows {len(keys)} objects of L3, not {len(seen)}"
        peers = {peer.name: peer.keys for peer in source.origins.peers}
        assert peers.keys() == {other.name for other in node.others}, peers.keys()
        for other in node.others:
            known = peers[other.name]
            assert known is not None
            _check_mirror(engine, known, other)


def _check_mirror(engine: Cluster, known: Mirror, node: Node) -> None:
    """Every Scheduler knows of exactly the pages that an L2 holds, whoever has brought them."""
    names = l2_names(node)
    for group, keys in enumerate(known._groups):
        held = {key[:MIRROR_KEY_BYTES] for of, key in names if of == group}
        assert keys == held, (
            f"{engine.name} knows {len(keys)} pages of group {group} of {node.name}; "
            f"L2 there has {len(held)}"
        )


def sources_of(cluster: Cluster) -> dict[str, int]:
    """Prompt tokens of all requests, by source."""
    totals: dict[str, int] = {}
    for answer in cluster.history:
        for source, num_tokens in (answer.sources or {}).items():
            totals[source] = totals.get(source, 0) + num_tokens
    return totals


def storage_share(sources: dict[str, int]) -> float:
    """The part of the prompt tokens from caches that came from L3."""
    num_cached = sum(sources.get(tier, 0) for tier in ("l1", "l2", "peer", "l3"))
    return sources.get("l3", 0) / max(1, num_cached)
