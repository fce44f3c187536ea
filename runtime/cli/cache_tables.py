"""What `raydix cache stats`, `explain` and `prefetch` show to people."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from rich.markup import escape
from rich.table import Table

from raydix.runtime.cache.host.circuit_breaker import TripCause
from raydix.runtime.cli.source_table import TIERS, source_table
from raydix.runtime.messages.host import ObjectStatus, PageSource
from raydix.runtime.storage.worker.order_counts import Operation

Figures = Mapping[str, Any]

MEANINGS: Mapping[PageSource, str] = {
    PageSource.L1: "was in GPU pages",
    PageSource.L2: "was in the host arena",
    PageSource.PEER: "was in the host arena of another node",
    PageSource.L3: "was in storage",
    PageSource.LAST_TOKEN: (
        "the last token is always computed: the first output token comes from it"
    ),
    PageSource.PARTIAL_PAGE: "fills no whole page, and only whole pages are kept",
    PageSource.NOT_FOUND: "no tier had it, or one before it",
    PageSource.BELOW_MIN_TOKENS: (
        "so few tokens are not fetched from storage: cache.prefetch.min_tokens"
    ),
    PageSource.TIMED_OUT: "storage was asked, and took longer than it may",
    PageSource.CANCELLED: (
        "nobody waited for storage any longer: cache.prefetch.strategy and .cap, storage that is "
        "slower than these allow or was detached, or a request that ended"
    ),
    PageSource.RECOMPUTE_CHEAPER: "computing it was predicted to be faster than loading it",
    PageSource.NO_HOST_PAGE: "the host arena had no room for it",
    PageSource.BAD_OBJECT: "what storage had did not pass verification, and was removed",
    PageSource.IO_ERROR: "storage or the host arena failed, or is left alone since it did",
    PageSource.CACHING_OFF: "cache.prefix_caching is false",
    PageSource.NO_WINDOW: (
        "no tier had the pages of the sliding window with which one could have gone on from there"
    ),
    PageSource.PROMPT_LOGPROBS: "prompt_logprobs were asked for, and caches hold no logits",
}
_MEANINGS_BY_LABEL = {source.label: meaning for source, meaning in MEANINGS.items()}
_TOKENS_PREFIX = "prompt_tokens_"
_WINDOW_PREFIX = "kv_group_window_tokens_"
_DROPPED_PREFIX = "l3_writes_dropped_"
_EXPERT_FIGURES = (
    "balance_mean_of_layers",
    "balance_ratio_of_sums",
    "time_imbalance",
    "time_imbalance_wanted",
    "moves",
    "moves_left",
    "migration_stalled",
    "placement_version",
)
_OFF: Mapping[str, str] = {
    TripCause.LATE: "had no answer in time",
    TripCause.FAILING: "failed, one after another",
}
_OPERATIONS = tuple(each for each in Operation if each is not Operation.CLEAR)
"""The operations of serving; a flush clears."""
_FAILURES = (ObjectStatus.IO_ERROR, ObjectStatus.TIMED_OUT, ObjectStatus.FULL)


def explanation_table(explanation: Figures) -> Table:
    """A row per range of a request's prompt."""
    total = explanation["prompt_tokens"]
    sources: Mapping[str, int] = explanation["cached_tokens_by_source"]
    num_cached = sum(
        count for source, count in sources.items() if not source.startswith("computed")
    )

    table = Table(title=f"{num_cached:,} of {total:,} prompt tokens were cached")
    table.add_column("tokens", justify="right")
    table.add_column("source")
    table.add_column("why")
    for each in explanation["ranges"]:
        tokens = f"{each['start']:,} to {each['end'] - 1:,}"
        table.add_row(tokens, each["source"], _MEANINGS_BY_LABEL[each["source"]])
    return table


def prefetch_table(sources_by_prompt: Sequence[Mapping[str, int] | None]) -> Table:
    """A row per prompt: its tokens, those that each tier had, and the others; None: it failed.

    Prompts are counted from 0, as in all messages.
    """
    table = Table("prompt", "tokens", *TIERS, "absent")
    for number, sources in enumerate(sources_by_prompt):
        if sources is None:
            table.add_row(str(number), "failed")
            continue
        found = [sources.get(tier, 0) for tier in TIERS]
        total = sum(sources.values())
        counts = (total, *found, total - sum(found))
        table.add_row(str(number), *(f"{count:,}" for count in counts))
    return table


def stats_tables(stats: Mapping[str, Figures | None]) -> Iterator[Table]:
    """Where prompt tokens came from, what each tier holds, what storage did, and what failed.

    stats: figures by actor, None where an actor did not answer; and L3's errors by backend.
    """
    scheduler, host, storage = (
        stats.get(actor) or {} for actor in ("scheduler", "host", "storage")
    )
    tokens_by_source = _without_prefix(scheduler, _TOKENS_PREFIX)
    yield source_table({"tokens": tokens_by_source})

    tokens_by_reason = {
        source: tokens
        for source, tokens in sorted(tokens_by_source.items())
        if source in _MEANINGS_BY_LABEL and source.startswith("computed")
    }
    if tokens_by_reason:
        yield _reasons_table(tokens_by_reason)

    yield _tiers_table(scheduler, host, storage)
    if scheduler.get("l1_kept") or host.get("l2_kept"):
        yield _kept_table({"L1": scheduler.get("l1_kept", ()), "L2": host.get("l2_kept", ())})
    if host.get("l2_pins"):
        yield pins_table(host["l2_pins"])
    windows = {
        int(group): window for group, window in _without_prefix(scheduler, _WINDOW_PREFIX).items()
    }
    if len(windows) > 1 or any(windows.values()):
        yield _groups_table(windows, scheduler, host)
    if "expert_placement_version" in scheduler:
        yield _experts_table(scheduler)
    if storage:
        yield _operations_table(storage)
        yield _host_table(host)
    errors = stats.get("storage_errors")
    if errors:
        yield _errors_table(errors)


def _without_prefix(figures: Figures, prefix: str) -> dict[str, int]:
    """The figures whose names begin with `prefix`, by what follows it."""
    return {
        name.removeprefix(prefix): value
        for name, value in figures.items()
        if name.startswith(prefix)
    }


def _reasons_table(tokens_by_reason: Mapping[str, int]) -> Table:
    table = Table("computed because", "tokens", "meaning", title="Why prompt tokens were computed")
    for source, tokens in tokens_by_reason.items():
        table.add_row(source.partition(":")[2], f"{tokens:,}", _MEANINGS_BY_LABEL[source])
    return table


def _tiers_table(scheduler: Figures, host: Figures, storage: Figures) -> Table:
    table = Table("tier", "holds", "of", "evicted", title="Tiers")
    if scheduler:
        used, total = scheduler["l1_used_pages"], scheduler["l1_total_pages"]
        evicted = scheduler.get("evicted_pages", 0)
        table.add_row("L1", f"{used:,} pages", f"{total:,} pages", f"{evicted:,} pages")

    if host:
        holds = f"{host['pages_ready']:,} pages, {_size(host['ready_bytes'])}"
        # Of pages nobody knows how many there can be: groups share slabs, and pages differ in size.
        table.add_row(
            "L2", holds, _size(host["slabs_bytes"]), f"{host.get('pages_dropped', 0):,} pages"
        )

    # Only a backend that Raydix bounds itself counts what it holds.
    if "bytes" in storage:
        holds = f"{storage['objects']:,} objects, {_size(storage['bytes'])}"
        bound = _size(storage["max_bytes"]) if storage["max_bytes"] else "no bound"
        evicted = f"{storage.get('objects_evicted', 0):,} objects"
        table.add_row(f"L3 {storage['backend']}", holds, bound, evicted)
    elif storage:
        table.add_row(f"L3 {storage['backend']}", "bounded by its service", "", "")
    return table


def pins_table(pins: Sequence[Figures]) -> Table:
    """A row per pin, the oldest first."""
    table = Table("pin", "tenant", "tokens", "MiB", "for", title="Pinned in L2")
    for pin in pins:
        tenant, size = escape(str(pin["tenant"] or "")), f"{pin['bytes'] / 2**20:,.1f}"
        left = f"{pin['left_s']:,.0f} s"
        table.add_row(escape(pin["pin_id"]), tenant, f"{pin['pinned_tokens']:,}", size, left)
    return table


def _kept_table(kept: Mapping[str, Sequence[Figures]]) -> Table:
    table = Table("tier", "tenant", "session", "because", "pages", "for", title="Kept by hints")
    for tier, keeps in kept.items():
        for keep in keeps:
            tenant, session = (str(keep.get(name) or "") for name in ("tenant", "session_id"))
            pages, left = f"{keep['pages']:,}", f"{keep['left_s']:,.0f} s"
            table.add_row(tier, escape(tenant), escape(session), keep["reason"], pages, left)
    return table


def _groups_table(windows: Mapping[int, int], scheduler: Figures, host: Figures) -> Table:
    """A row per KV group; `windows`: how many tokens its layers look back, 0: over all."""
    table = Table("KV group", "layers look back over", "L1 holds", "of", "L2 holds")
    table.title = "Groups of layers that cache alike"
    for group, window in sorted(windows.items()):
        table.add_row(
            str(group),
            f"{window:,} tokens" if window else "all tokens",
            f"{scheduler[f'l1_used_pages_{group}']:,} pages",
            f"{scheduler[f'l1_total_pages_{group}']:,} pages",
            f"{host[f'pages_ready_{group}']:,} pages" if host else "",
        )
    return table


def _experts_table(scheduler: Figures) -> Table:
    figures = {name: scheduler[f"expert_{name}"] for name in _EXPERT_FIGURES}
    state = "stalled" if figures["migration_stalled"] else "on its way"
    left = figures["moves_left"]

    table = Table(title="Experts over ranks", show_header=False)
    ways = (
        f"{figures['balance_mean_of_layers']:.3f}, of sums {figures['balance_ratio_of_sums']:.3f}"
    )
    table.add_row("balancedness, mean of layers", ways)
    planned = f"{figures['time_imbalance']:.3f}, planned {figures['time_imbalance_wanted']:.3f}"
    table.add_row("time imbalance at the last look", planned)
    table.add_row("experts moved", f"{figures['moves']:,}")
    table.add_row("moves left", f"{left:,}, {state}" if left else "0")
    table.add_row("placement version", f"{figures['placement_version']:,}")
    return table


def _operations_table(storage: Figures) -> Table:
    title = f"L3 {storage['backend']} by operation; {storage['active_batches']} batches under way"
    counted = ("batches", "objects", "missing", "bad", "failed")
    table = Table("operation", *counted, "bytes", "ms/batch", title=title)
    for operation in _OPERATIONS:
        results = {
            status: storage.get(f"{operation}_objects_{status.name.lower()}", 0)
            for status in ObjectStatus
        }
        num_batches = storage.get(f"{operation}_batches", 0)
        counts: Sequence[int] = (
            num_batches,
            sum(results.values()),
            results[ObjectStatus.MISSING],
            sum(count for status, count in results.items() if status.is_bad_object),
            sum(results[status] for status in _FAILURES),
        )

        seconds = storage.get(f"{operation}_seconds", 0.0)
        mean_ms = f"{1e3 * seconds / num_batches:.2f}" if num_batches else ""
        moved = _size(storage[f"{operation}_bytes"]) if f"{operation}_bytes" in storage else ""
        table.add_row(operation, *(f"{count:,}" for count in counts), moved, mean_ms)
    return table


def _host_table(host: Figures) -> Table:
    dropped = _without_prefix(host, _DROPPED_PREFIX)
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in sorted(dropped.items()))
    breaker, num_trips = host.get("l3_breaker", "?"), host.get("l3_breaker_trips", 0)

    table = Table(title="L3 as HostMemory sees it", show_header=False)
    table.add_row("circuit breaker", f"{breaker}, tripped {num_trips:,} times")
    if "l3_off_at_s" in host:
        kind, what = host["l3_off_kind"], _OFF[host["l3_off_cause"]]
        table.add_row("left alone since", f"{_when(host['l3_off_at_s'])}: {kind} {what}")
    patience = ", ".join(
        f"{kind} {host[f'l3_{kind}_patience_s']:.3g} s"
        for kind in ("exists", "read", "write")
        if f"l3_{kind}_patience_s" in host
    )
    table.add_row("answers may take", patience)
    table.add_row("pages waiting to be written", f"{host.get('l3_writes_pending', 0):,}")
    table.add_row("pages offered again later", f"{host.get('l3_writes_put_off', 0):,}")
    table.add_row("writes tried again", f"{host.get('l3_writes_retried', 0):,}")
    table.add_row("writes dropped", reasons or "0")
    table.add_row("batches not answered in time", f"{host.get('l3_overdue_batches', 0):,}")
    table.add_row("pages known to be missing", f"{host.get('l3_pages_known_missing', 0):,}")
    return table


def _errors_table(errors: Figures) -> Table:
    table = Table("backend", "errors", "last", "what it was", title="L3 errors by backend")
    for backend, last in sorted(errors.items()):
        table.add_row(backend, f"{last['num_errors']:,}", _when(last["at_s"]), escape(last["text"]))
    return table


def _when(at_s: float) -> str:
    return datetime.fromtimestamp(at_s).astimezone().isoformat(" ", timespec="seconds")


def _size(num_bytes: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if num_bytes < 1024:
            return f"{num_bytes:,.3g} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:,.4g} TiB"
