"""A client of several engines asks the one whose first token comes soonest, as far as they say."""

import asyncio
from dataclasses import replace

import pytest

from raydix.ids import RequestId
from raydix.runtime.api.engine_client import EngineClient
from raydix.runtime.api.line_router import LineRouter
from raydix.runtime.api.model_limits import ModelLimits
from raydix.runtime.api.request_options import RequestOptions
from raydix.runtime.api.routing_figures import RoutingFigures
from raydix.runtime.api.sampling_params import SamplingParams
from raydix.runtime.cache.page_key import extend_keys, pack_tokens, root_key, short_keys
from raydix.runtime.config.policies import RoutingPolicyName
from raydix.runtime.messages.client import PrefetchPrompt, SubmitRequest
from raydix.runtime.messages.kv_events import KvEvent, PagesStored, ShortKeys, Tier, TierCleared
from raydix.runtime.messages.line import Line
from raydix.runtime.messages.routing import EngineNews, FollowEngine, NodeReport
from raydix.runtime.routing import prompt_keys
from raydix.runtime.routing.policies import policy_of
from tests.runtime.api.fake_engine import FakeHandle, FakeLink, delta, echo
from tests.runtime.api.small_client import turns

PAGE_SIZE = 4
PROMPT = list(range(40))
IDLE = NodeReport(
    num_seen=0,
    busy_s=0.0,
    num_requests=0,
    arrivals_per_s=0.1,
    busy_fraction=0.0,
    num_ingresses=1,
    prefill=Line(0.0, 0.01),
    load=Line(0.0, 0.001),
    pull=None,
    page_size=PAGE_SIZE,
    interval_s=1.0,
)


def stored(tokens: list[int], tier: Tier = Tier.L1, salt: str | None = None) -> PagesStored:
    keys = short_keys(extend_keys(root_key(cache_salt=salt), pack_tokens(tokens), PAGE_SIZE))
    lane = 0 if tier is Tier.L1 else None
    return PagesStored(tier=tier, lane=lane, group=0, keys=ShortKeys(keys))


class Told:
    """Two engines that are scripts, a client of both, and a clock."""

    def __init__(self, name: RoutingPolicyName = RoutingPolicyName.KV) -> None:
        self.now_s = 0.0
        self.links = {"a": FakeLink(), "b": FakeLink()}
        self.figures = RoutingFigures(self.links)
        self.router = router = LineRouter(policy_of(name), self.figures, lambda: self.now_s)
        limits = ModelLimits.of(FakeHandle("model").facts)
        self.client = EngineClient(limits, None, lambda name: None, router)
        for engine, link in self.links.items():
            self.client.use(engine, link)

    async def tell(
        self,
        engine: str,
        *events: KvEvent,
        report: NodeReport | None = IDLE,
        is_anew: bool = False,
    ) -> None:
        """An engine answers what it was asked."""
        news = EngineNews(is_anew=is_anew, is_whole=True, events=events, report=report)
        self.links[engine]._inbox.put_nowait(news)
        await turns()

    async def ask(self, tokens: list[int], **options: str) -> tuple[str, str | None]:
        """Where a request goes, and what is said of it; nobody waits for its answer."""
        prompt = await self.client.tokenized(tokens)
        request = self.client.open(
            prompt,
            SamplingParams(max_tokens=1),
            RequestId(f"r{self.num_asked()}"),
            RequestOptions(**options),
            lambda: None,
        )
        [engine] = [
            name
            for name, link in self.links.items()
            if any(each.asking == request.asking for each in link.sent_of(SubmitRequest))
        ]
        return engine, None if request.route is None else request.route.header

    def num_asked(self) -> int:
        return sum(len(link.sent_of(SubmitRequest)) for link in self.links.values())


@pytest.fixture
async def told():
    told = Told()
    yield told
    await told.client.close()


async def test_each_engine_is_asked_for_news_as_soon_as_it_is_there_and_after_each(told):
    assert [len(link.sent_of(FollowEngine)) for link in told.links.values()] == [1, 1]
    await told.tell("b", is_anew=True)
    assert [len(link.sent_of(FollowEngine)) for link in told.links.values()] == [1, 2]


async def test_a_request_goes_where_its_prefix_is_and_says_so(told):
    await told.tell("a", is_anew=True)
    await told.tell("b", stored(PROMPT[:32]), stored(PROMPT, Tier.L2), is_anew=True)

    engine, header = await told.ask([*PROMPT, 1, 2])

    assert engine == "b"
    # Two tokens are computed and two pages loaded.
    assert header == "engine=b, predicted_s=0.022, l1=32, l2=8, peer=0"
    assert told.figures.num_routed == {"a": 0, "b": 1}
    assert told.figures.num_tokens["b", "l1"] == 32


async def test_a_prefix_of_another_salt_is_not_there(told):
    await told.tell("a", is_anew=True)
    await told.tell("b", stored(PROMPT, salt="other"), is_anew=True)

    assert (await told.ask(PROMPT, cache_salt="mine"))[1].endswith("l1=0, l2=0, peer=0")
    assert (await told.ask(PROMPT, cache_salt="other"))[0] == "b"


async def test_who_asks_again_hashes_nothing_anew_and_keeps_no_keys_of_what_is_answered(
    told, monkeypatch
):
    hashed = []

    def counted(root, packed, size):
        hashed.append(size)
        return extend_keys(root, packed, size)

    monkeypatch.setattr(prompt_keys, "extend_keys", counted)
    for engine in "ab":
        await told.tell(engine, is_anew=True)
    first, _ = await told.ask(PROMPT)
    second = "b" if first == "a" else "a"
    told.links[first].break_off()
    await turns()

    [again] = told.links[second].sent_of(SubmitRequest)
    assert hashed == [PAGE_SIZE]
    assert len(told.router._router._prompt_keys) == 1

    told.links[second].deliver(delta(again.request_id, [5], asking=again.asking))
    await turns()
    assert len(told.router._router._prompt_keys) == 0
    assert (await told.ask([*PROMPT, 1]))[0] == second
    assert hashed == [PAGE_SIZE] * 2


async def test_after_a_flush_it_goes_there_no_more(told):
    await told.tell("a", is_anew=True)
    await told.tell("b", stored(PROMPT), is_anew=True)
    await told.tell("b", TierCleared(tier=Tier.L1, lane=0))
    await told.tell("a", stored(PROMPT))

    assert (await told.ask(PROMPT))[0] == "a"


async def test_who_is_busy_is_spared_and_own_decisions_count_at_once(told):
    for engine in "ab":
        await told.tell(engine, is_anew=True)
    went = [(await told.ask(list(range(start, start + 40))))[0] for start in range(50, 58)]
    assert sorted(went) == ["a"] * 4 + ["b"] * 4

    await told.tell("a", report=replace(IDLE, num_seen=4, busy_s=30.0))
    await told.tell("b", report=replace(IDLE, num_seen=4))
    assert {(await told.ask(list(range(start, start + 40))))[0] for start in range(70, 78)} == {"b"}


async def test_while_none_has_reported_sessions_say_where_requests_go(told):
    went = {(await told.ask(PROMPT, session_id="s")) for _ in range(4)}
    assert len(went) == 1
    assert went.pop()[1] is None


async def test_requests_that_were_not_chosen_are_counted_by_both_ends(told):
    await told.ask(PROMPT, session_id="s")
    for engine in "ab":
        await told.tell(engine, is_anew=True)
    first, header = await told.ask(PROMPT)
    assert header is not None
    # The engine has seen all of them: nothing counts beside what it says.
    num_seen = len(told.links[first].sent_of(SubmitRequest))
    await told.tell(first, report=replace(IDLE, num_seen=num_seen))
    other = list(range(100, 140))
    own_s = [(await told.ask(other))[1].split(", ")[1] for _ in range(2)]
    assert own_s[0] == "predicted_s=0.400"


async def test_an_engine_that_is_lost_is_forgotten_and_used_again_once_it_has_told_anew(told):
    await told.tell("a", is_anew=True)
    await told.tell("b", stored(PROMPT), is_anew=True)
    assert told.figures.num_keys == {"a": 0, "b": 10}
    told.links["b"].break_off()
    await turns()
    assert told.figures.num_keys == {"a": 0, "b": 0}
    assert (await told.ask(PROMPT))[0] == "a"

    told.links["b"] = FakeLink()
    told.client.use("b", told.links["b"])
    assert (await told.ask(PROMPT))[0] == "a"
    await told.tell("b", stored([7, *PROMPT]), is_anew=True)
    assert (await told.ask([7, *PROMPT]))[0] == "b"


async def test_a_silent_engine_is_spared_until_it_is_heard_again(told):
    await told.tell("a", is_anew=True)
    await told.tell("b", stored(PROMPT), is_anew=True)
    told.now_s = 30.0
    await told.tell("a")
    assert (await told.ask(PROMPT))[0] == "a"
    await told.tell("b")
    assert (await told.ask([*PROMPT, 1, 2, 3, 4]))[0] == "b"


async def test_the_first_token_shows_how_wrong_the_prediction_was(told):
    await told.tell("a", is_anew=True)
    await told.tell("b", is_anew=True, report=None)
    assert (await told.ask(PROMPT))[0] == "a"
    [asked] = told.links["a"].sent_of(SubmitRequest)
    told.now_s = 1.0

    told.links["a"].deliver(delta(asked.request_id, [5], asking=asked.asking))
    told.links["a"].deliver(delta(asked.request_id, [6], asking=asked.asking))
    await turns()

    late = told.figures.late.distribution()
    assert (late.count, told.figures.early.distribution().count) == (1, 0)
    assert late.total == pytest.approx(0.6)


async def test_a_prefetch_goes_where_the_beginning_of_its_prompt_says(told):
    told.links["a"]._answer = told.links["b"]._answer = echo
    for engine in "ab":
        await told.tell(engine, is_anew=True)
    for _ in range(3):
        await asyncio.wait_for(told.client.prefetch(PROMPT), 10)
    counts = [len(link.sent_of(PrefetchPrompt)) for link in told.links.values()]
    assert sorted(counts) == [0, 3]


@pytest.mark.parametrize("name", list(RoutingPolicyName))
async def test_every_policy_explains_itself(name):
    told = Told(name)
    for engine in "ab":
        await told.tell(engine, is_anew=True)
    went = [await told.ask(PROMPT, session_id="s") for _ in range(4)]
    assert all(header.startswith(f"engine={engine}, ") for engine, header in went)
    if name is not RoutingPolicyName.KV:
        num_engines = {RoutingPolicyName.SESSION: 1, RoutingPolicyName.ROUND_ROBIN: 2}[name]
        assert len({engine for engine, _ in went}) == num_engines
    await told.client.close()
