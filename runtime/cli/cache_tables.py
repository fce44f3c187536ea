"""What `raydix cache stats`, `explain` and `prefetch` show to people."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.table import Table

from raydix.runtime.cli.source_table import TIERS, source_table
from raydix.runtime.messages.host import ObjectStatus, PageSource

Figures = Mapping[str, Any]

MEANINGS: Mapping[PageSource, str] = {
    PageSource.L1: "was in GPU pages",
    PageSource.L2: "was in the host arena",
    PageSource.L3: "was in storage",
    PageSource.LAST_TOKEN: "the last token is always computed: the first output token comes from it",
    PageSource.PARTIAL_PAGE: "fills no whole page, and only whole pages are kept",
    PageSource.NOT_FOUND: "no tier had it",
    PageSource.BELOW_MIN_TOKENS: "storage was not asked for so few tokens: cache.prefetch.min_tokens",
    PageSource.TIMED_OUT: "storage took longer than it may",
    PageSource.CANCELLED: "the request did not wait for storage any longer: cache.prefetch.strategy",
    PageSource.RECOMPUTE_CHEAPER: "computing it was predicted to be faster than loading it",
    PageSource.NO_HOST_PAGE: "the host arena had no room for it",
    PageSource.BAD_OBJECT: "what storage had did not pass verification, and was removed",
    PageSource.IO_ERROR: "storage failed, or is left alone since it did",
    PageSource.CACHING_OFF: "cache.prefix_caching is false",
}
_BY_LABEL = {source.label: meaning for source, meaning in MEANINGS.items()}
_OPERATIONS = ("exists", "read", "write")
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
        table.add_row(
            f"{each['start']:,} to {each['end'] - 1:,}", each["source"], _BY_LABEL[each["source"]]
        )
    return table


def prefetch_table(sources_by_prompt: Sequence[Mapping[str, int]]) -> Table:
    """A row per prompt: its tokens, those that each tier had, and the others."""
    table = Table("prompt", "tokens", *TIERS, "absent")
    for number, sources in enumerate(sources_by_prompt, start=1):
        found = [sources.get(tier, 0) for tier in TIERS]
        total = sum(sources.values())
        counts = (total, *found, total - sum(found))
        table.add_row(str(number), *(f"{count:,}" for count in counts))
    return table


def stats_tables(stats: Mapping[str, Figures | None]) -> Iterator[Table]:
    """Where prompt tokens came from, what each tier holds, and what storage did; an actor's figures
    may be None.
    """
    scheduler, host, storage = (
        stats.get(actor) or {} for actor in ("scheduler", "host", "storage")
    )
    prefix = "prompt_tokens_"
    tokens = {
        name.removeprefix(prefix): value
        for name, value in scheduler.items()
        if name.startswith(prefix)
    }
    yield source_table({"tokens": tokens})
    reasons = {
        name: value
        for name, value in sorted(tokens.items())
        if name in _BY_LABEL and name.startswith("computed")
    }
    if reasons:
        table = Table(
            "computed because", "tokens", "meaning", title="Why prompt tokens were computed"
        )
        for name, value in reasons.items():
            table.add_row(name.partition(":")[2], f"{value:,}", _BY_LABEL[name])
        yield table
    yield _tiers(scheduler, host, storage)
    if storage:
        yield _storage(storage)
        yield _host_and_storage(host)


def _tiers(scheduler: Figures, host: Figures, storage: Figures) -> Table:
    table = Table("tier", "holds", "of", "evicted", title="Tiers")
    if scheduler:
        used, total = scheduler["l1_used_pages"], scheduler["l1_total_pages"]
        table.add_row(
            "L1",
            f"{used:,} pages",
            f"{total:,} pages",
            f"{scheduler.get('evicted_pages', 0):,} pages",
        )
    if host:
        total = sum(value for name, value in host.items() if name in _HOST_PAGES)
        holds = f"{host['pages_ready']:,} pages, {_size(host['ready_bytes'])}"
        table.add_row("L2", holds, f"{total:,} pages", f"{host.get('pages_dropped', 0):,} pages")
    if "bytes" in storage:
        holds = f"{storage['objects']:,} objects, {_size(storage['bytes'])}"
        bound = _size(storage["max_bytes"]) if storage["max_bytes"] else "no bound"
        evicted = f"{storage.get('objects_evicted', 0):,} objects"
        table.add_row(f"L3 {storage['backend']}", holds, bound, evicted)
    elif storage:
        table.add_row(f"L3 {storage['backend']}", "bounded by its service", "", "")
    return table


_HOST_PAGES = ("pages_free", "pages_filling", "pages_ready", "pages_quarantined")


def _storage(storage: Figures) -> Table:
    title = f"L3 {storage['backend']} by operation; {storage['active_batches']} batches under way"
    table = Table(
        "operation",
        "batches",
        "objects",
        "missing",
        "bad",
        "failed",
        "bytes",
        "ms/batch",
        title=title,
    )
    for operation in _OPERATIONS:
        results = {
            status: storage.get(f"{operation}_objects_{status.name.lower()}", 0)
            for status in ObjectStatus
        }
        num_batches = storage.get(f"{operation}_batches", 0)
        bad = sum(count for status, count in results.items() if status.is_bad_object)
        failed = sum(results[status] for status in _FAILURES)
        counts: Sequence[int] = (
            num_batches,
            sum(results.values()),
            results[ObjectStatus.MISSING],
            bad,
            failed,
        )
        mean_ms = (
            f"{1e3 * storage[f'{operation}_seconds'] / num_batches:.2f}" if num_batches else ""
        )
        moved = _size(storage[f"{operation}_bytes"]) if f"{operation}_bytes" in storage else ""
        table.add_row(operation, *(f"{count:,}" for count in counts), moved, mean_ms)
    return table


def _host_and_storage(host: Figures) -> Table:
    table = Table(title="L3 as HostMemory sees it", show_header=False)
    dropped = {
        name.removeprefix("l3_writes_dropped_"): count
        for name, count in host.items()
        if "writes_dropped" in name
    }
    rows = (
        (
            "circuit breaker",
            f"{host.get('l3_breaker', '?')}, tripped {host.get('l3_breaker_trips', 0):,} times",
        ),
        ("pages waiting to be written", f"{host.get('l3_writes_pending', 0):,}"),
        ("writes tried again", f"{host.get('l3_writes_retried', 0):,}"),
        (
            "writes dropped",
            ", ".join(f"{count:,} {reason}" for reason, count in sorted(dropped.items())) or "0",
        ),
        ("batches not answered in time", f"{host.get('l3_overdue_batches', 0):,}"),
        ("pages known to be missing", f"{host.get('l3_pages_known_missing', 0):,}"),
    )
    for row in rows:
        table.add_row(*row)
    return table


def _size(num_bytes: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if num_bytes < 1024:
            return f"{num_bytes:,.3g} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:,.4g} TiB"
