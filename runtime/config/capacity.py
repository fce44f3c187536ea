"""How much each tier holds, by the configuration and the model's KV layout."""

from collections.abc import Sequence

from raydix.errors import ConfigError
from raydix.kernels.pages.page_codec import Codec
from raydix.moe.dispatch.transport import Transport
from raydix.runtime.config.checkpoint_distance import checkpoint_distance
from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.config.experts import ExpertsSection
from raydix.runtime.config.kv_layout import FP8_DTYPE, GroupKind, KvLayout
from raydix.runtime.config.kv_shard import KvShard
from raydix.runtime.config.l3 import BoundedL3Section
from raydix.runtime.config.values import Section

_BINARY_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def host_bytes_per_node(
    config: EngineConfig, layout: KvLayout, num_pages: Sequence[int], lanes_on_node: int
) -> int | None:
    """Bytes of a node's arena; None without L2.

    num_pages: usable L1 pages of each KV group in each lane, whose ranks share the heads of a page.
    """
    l2 = config.cache.l2
    if l2 is None or not config.has_l2:
        return None
    if l2.bytes_per_node is not None:
        return l2.bytes_per_node
    if l2.ratio is None:
        raise AssertionError("cache.l2 has neither bytes_per_node nor ratio")

    lane_bytes = sum(pages * layout.host_page_bytes(group) for group, pages in enumerate(num_pages))
    return int(l2.ratio * lanes_on_node * lane_bytes)


def require_room_in_l3(config: EngineConfig, layout: KvLayout) -> None:
    """Raise ConfigError if storage is bounded below one page: it would keep nothing."""
    section = config.cache.l3
    page_bytes = max(layout.host_page_bytes(group) for group in range(len(layout.groups)))
    if isinstance(section, BoundedL3Section) and section.max_bytes < page_bytes:
        raise ConfigError(
            f"cache.l3.max_bytes is {section.max_bytes}, less than the {page_bytes} bytes of one "
            "page: nothing could be kept. Raise it, or set cache.l3 to null."
        )


def effective_summary(config: EngineConfig, layout: KvLayout, num_pages: Sequence[int]) -> str:
    """The effective configuration for people: bytes per page, what each tier holds, and experts.

    num_pages: usable L1 pages of each KV group per rank. One node is assumed for a ratio of L1.
    """
    model, page_size = config.model, layout.page_size
    num_ranks = config.parallel.dp * config.parallel.tp
    shard = KvShard(layout=layout, num_ranks=config.parallel.tp)
    l1_bytes = sum(pages * shard.page_bytes(group) for group, pages in enumerate(num_pages))
    host_bytes = host_bytes_per_node(config, layout, num_pages, config.parallel.dp)

    return "\n".join(
        (
            f"model  {model.path} on {model.device}, {model.dtype}, {num_ranks} rank(s)",
            f"page   {page_size} tokens, {format_bytes(page_size * layout.token_bytes)}"
            f"{', FP8' if layout.dtype == FP8_DTYPE else ''}",
            f"L1     {_tier(max(num_pages), page_size, l1_bytes)} per rank"
            f"{_windows(layout, num_pages)}, eviction {config.cache.eviction}",
            f"L2     {_l2(config, layout, host_bytes)}",
            f"L3     {_l3(config, layout)}",
            *_experts(config),
        )
    )


def _windows(layout: KvLayout, num_pages: Sequence[int]) -> str:
    """The pools of WINDOW and STATE groups, which may be smaller."""
    pools = []
    for group, pages in zip(layout.groups, num_pages, strict=True):
        if group.window is not None:
            pools.append(f", {pages:,} pages for layers with a window of {group.window:,} tokens")
        elif group.state_bytes:
            pools.append(f", {pages:,} states of {format_bytes(group.state_bytes)}")
    return "".join(pools)


def _l2(config: EngineConfig, layout: KvLayout, host_bytes: int | None) -> str:
    if host_bytes is None:
        return _off(config, config.cache.l2)
    tier = _tier(host_bytes // _host_page_bytes(layout), layout.page_size, host_bytes)
    rounding = "" if layout.codec is Codec.NONE else f", rounded to {layout.codec}"
    return f"{tier} per node, {config.cache.write_policy}{rounding}"


def _l3(config: EngineConfig, layout: KvLayout) -> str:
    l3 = config.cache.l3
    if l3 is None or not config.has_l3:
        return _off(config, l3)
    if not isinstance(l3, BoundedL3Section):
        return f"as much as its service holds, backend {l3.backend}"
    tier = _tier(l3.max_bytes // _host_page_bytes(layout), layout.page_size, l3.max_bytes)
    return f"at most {tier}, backend {l3.backend}"


def _off(config: EngineConfig, section: Section | None) -> str:
    """Why a tier is not there, if its section is."""
    is_in_vain = section is not None and not config.cache.prefix_caching
    return "off, as cache.prefix_caching is false" if is_in_vain else "off"


def _experts(config: EngineConfig) -> list[str]:
    """Where experts are, if ranks share them or the configuration speaks of them in vain."""
    ep, experts = config.parallel.ep, config.experts
    if ep == 1:
        is_given = experts != ExpertsSection()
        return ["MoE    parallel.ep is 1: the section experts changes nothing"] if is_given else []

    store = "all in host memory, too" if experts.host_store else "none in host memory"
    return [
        f"MoE    experts over {ep} ranks, {store}, dispatch {experts.dispatch}, rows travel as "
        f"{_transport(config)}, rebalance {experts.rebalance}"
    ]


def _transport(config: EngineConfig) -> str:
    """What rows look like on their way to experts."""
    is_fp8 = config.experts.transport is Transport.FP8
    return "float8, which rounds them" if is_fp8 else config.model.dtype


def format_bytes(num_bytes: int) -> str:
    """`1536` becomes `1.5KiB`."""
    power = min(max(num_bytes.bit_length() - 1, 0) // 10, len(_BINARY_UNITS) - 1)
    return f"{num_bytes / 1024**power:.4g}{_BINARY_UNITS[power]}"


def _host_page_bytes(layout: KvLayout) -> int:
    """Bytes of a page of all groups; of states, of which few pages have one, that share of one."""
    groups = range(len(layout.groups))
    state_bytes = sum(layout.host_page_bytes(each) for each in groups if _is_state(layout, each))
    other_bytes = sum(
        layout.host_page_bytes(each) for each in groups if not _is_state(layout, each)
    )
    distance = checkpoint_distance(layout)
    return other_bytes + (0 if distance is None else -(-state_bytes // distance))


def _is_state(layout: KvLayout, group: int) -> bool:
    return layout.groups[group].kind is GroupKind.STATE


def _tier(num_pages: int, page_size: int, num_bytes: int) -> str:
    return f"{num_pages:,} pages = {num_pages * page_size:,} tokens = {format_bytes(num_bytes)}"
