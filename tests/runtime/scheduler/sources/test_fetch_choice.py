"""Where what L1 and L2 lack of a prompt is looked for."""

from raydix.ids import L3_SOURCE, LookupId, SourceId
from raydix.runtime.cache.page_key import KEY_BYTES, ChainKeys
from raydix.runtime.config.policies import LoadPolicy
from raydix.runtime.messages.host import Lookup, LookupProgress, PageSource
from raydix.runtime.messages.mirror import MirrorUpdate, PeerFound
from raydix.runtime.scheduler.sources.mirror import Mirror
from tests.runtime.scheduler.core_driver import CoreDriver
from tests.runtime.scheduler.keys import mirror_keys

PROMPT = list(range(41))
PEERS = [SourceId(2), SourceId(3), SourceId(4)]


class CountingMirror(Mirror):
    """Counts how often it is asked about pages."""

    num_asked = 0

    def has_page(self, group: int, keys: ChainKeys, page: int) -> bool:
        self.num_asked += 1
        return super().has_page(group, keys, page)


def driver_with_peers() -> tuple[CoreDriver, list[CountingMirror]]:
    """A driver whose L2 has the first 5 pages of the prompt; what its peers are known to have."""
    driver = CoreDriver(has_host_memory=True, load=LoadPolicy.ALWAYS)
    driver.fill_l2(PROMPT[:20])
    mirrors = []
    for source in PEERS:
        driver.hear_host(PeerFound(source=source, name=f"node {source}"))
        origin = driver.core._source.origins.find(source)
        assert origin is not None
        origin.keys = CountingMirror(1)
        mirrors.append(origin.keys)
    return driver, mirrors


def tell(driver: CoreDriver, source: SourceId, pages: slice) -> None:
    """A peer tells that it has these pages of the prompt."""
    keys = driver.keys(PROMPT)[pages.start * KEY_BYTES : pages.stop * KEY_BYTES]
    driver.hear_host(MirrorUpdate(source=source, ready=mirror_keys(keys)))


def asked_source(driver: CoreDriver) -> SourceId:
    """The origin at which the prompt is looked up."""
    driver.submit(PROMPT, max_tokens=1)
    [lookup] = [each for each in driver.to_host if isinstance(each, Lookup)]
    return lookup.source


def test_peers_that_lack_what_is_lacking_first_are_asked_about_one_page() -> None:
    driver, mirrors = driver_with_peers()
    tell(driver, PEERS[0], slice(0, 5))
    tell(driver, PEERS[1], slice(6, 10))

    assert asked_source(driver) == L3_SOURCE

    assert [mirror.num_asked for mirror in mirrors] == [1, 1, 1]


def test_the_peer_that_goes_on_farthest_is_asked() -> None:
    driver, _ = driver_with_peers()
    tell(driver, PEERS[0], slice(0, 7))
    tell(driver, PEERS[1], slice(5, 10))
    tell(driver, PEERS[2], slice(5, 9))

    assert asked_source(driver) == PEERS[1]


def test_pulls_that_are_always_given_up_are_not_begun_for_a_while() -> None:
    driver, _ = driver_with_peers()
    origins, told = driver.core._source.origins, driver.settings
    slow, other = PEERS[:2]
    # Computing the rest is believed to take 0.02 s, and is quicker than the pulls.
    for _ in range(6):
        report = LookupProgress(
            lookup_id=LookupId(99),
            sources=(bytes([PageSource.L2] * 5 + [PageSource.CANCELLED] * 5),),
            is_final=True,
            source=slow,
            seconds=0.02,
        )
        origins.learn(report, told, driver.now_s)

    num_bytes = told.bytes_of([5])
    rates = {source: origins.find(source) for source in (slow, other)}
    assert all(rates.values())
    believed = {
        source: origin.rate.predict_s(num_bytes, driver.now_s)
        for source, origin in rates.items()
        if origin is not None
    }
    assert believed[slow] > 0.02
    assert believed[other] < 0.001
    assert origins.pull_rate.predict_s(num_bytes, driver.now_s) > 0.02, "ingresses are told of it"
    assert origins.pull_rate.predict_s(num_bytes, driver.now_s + 400.0) < 0.001
