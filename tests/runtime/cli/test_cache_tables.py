import io
from pathlib import Path

from rich.console import Console, RenderableType

from raydix.runtime.cli.cache_tables import MEANINGS, explanation_table, stats_tables
from raydix.runtime.messages.host import ObjectStatus, PageSource
from raydix.runtime.storage.worker.order_counts import Operation, OrderCounts


def shown(*renderables: RenderableType) -> str:
    stream = io.StringIO()
    console = Console(file=stream, width=200)
    for each in renderables:
        console.print(each)
    return stream.getvalue()


def test_every_source_of_a_page_is_explained() -> None:
    assert set(MEANINGS) == set(PageSource) - {PageSource.PENDING}


def test_explanation_says_for_every_range_why() -> None:
    explanation = {
        "prompt_tokens": 253,
        "cached_tokens_by_source": {
            "l3": 128,
            "computed:bad_object": 112,
            "computed:partial_page": 13,
        },
        "ranges": [
            {"start": 0, "end": 128, "source": "l3"},
            {"start": 128, "end": 240, "source": "computed:bad_object"},
            {"start": 240, "end": 253, "source": "computed:partial_page"},
        ],
    }

    text = shown(explanation_table(explanation))

    assert "128 of 253 prompt tokens were cached" in text
    assert "128 to 239" in text
    for source in (PageSource.L3, PageSource.BAD_OBJECT, PageSource.PARTIAL_PAGE):
        assert MEANINGS[source] in text


HOST = {
    "pages_free": 90,
    "pages_filling": 4,
    "pages_ready": 6,
    "pages_quarantined": 0,
    "ready_bytes": 6 << 20,
    "slabs_bytes": 100 << 20,
}
SCHEDULER = {
    "l1_used_pages": 12,
    "l1_total_pages": 64,
    "prompt_tokens": 150,
    "prompt_tokens_l2": 100,
}


def storage() -> dict[str, object]:
    counts = OrderCounts()
    statuses = [
        ObjectStatus.OK,
        ObjectStatus.MISSING,
        ObjectStatus.BAD_CHECKSUM,
        ObjectStatus.TIMED_OUT,
    ]
    counts.add(Operation.READ, bytes(statuses), 1 << 20, 0.0125)
    known = {"objects": 3, "bytes": 3 << 20, "max_bytes": 8 << 30, "objects_evicted": 77}
    return known | counts.figures() | {"active_batches": 2, "backend": "file"}


def test_stats_show_sources_tiers_and_what_storage_did() -> None:
    host = HOST | {"l3_breaker": "open", "l3_breaker_trips": 2, "l3_writes_dropped_full": 5}
    scheduler = SCHEDULER | {"prompt_tokens_computed:not_found": 50}

    text = shown(*stats_tables({"scheduler": scheduler, "host": host, "storage": storage()}))

    assert "100 (66.7%)" in text
    assert MEANINGS[PageSource.NOT_FOUND] in text
    assert "6 pages, 6 MiB" in text
    assert "100 MiB" in text, "slabs that no KV group has taken yet count, too"
    assert "3 objects, 3 MiB" in text
    assert "8 GiB" in text
    assert "77 objects" in text
    assert "12.50" in text
    assert "open, tripped 2 times" in text
    assert "5 full" in text
    (read,) = [line for line in text.splitlines() if "read" in line]
    assert [cell.strip() for cell in read.split("│")[2:7]] == ["1", "4", "1", "1", "1"]


def test_stats_show_the_last_error_of_each_backend() -> None:
    errors = {
        "redis": {"text": "[Errno 111] Connection refused", "at_s": 1e9, "num_errors": 1234},
        "file": {"text": "disk full", "at_s": 2e9, "num_errors": 1},
    }
    (table,) = list(stats_tables({"storage_errors": errors}))[-1:]
    file, redis = [line for line in shown(table).splitlines() if "file" in line or "redis" in line]
    assert "disk full" in file
    assert "1,234" in redis
    assert "[Errno 111] Connection refused" in redis
    assert "2001-09-0" in redis


def test_stats_of_a_service_without_bound_and_of_actors_that_restart() -> None:
    counts = OrderCounts().figures()
    redis = {"idle_connections": 1, "active_batches": 0, "backend": "redis"} | counts
    assert "bounded by its service" in shown(
        *stats_tables({"scheduler": SCHEDULER, "host": HOST, "storage": redis})
    )
    assert "L3" not in shown(
        list(stats_tables({"scheduler": SCHEDULER, "host": HOST, "storage": None}))[-1]
    )
    assert shown(*stats_tables({"scheduler": None, "host": None, "storage": None}))


def test_a_model_with_windows_has_a_row_per_kv_group() -> None:
    scheduler = SCHEDULER | {
        "kv_group_window_tokens_0": 0,
        "kv_group_window_tokens_1": 4096,
        "l1_used_pages_0": 9,
        "l1_total_pages_0": 40,
        "l1_used_pages_1": 3,
        "l1_total_pages_1": 24,
    }
    host = HOST | {"pages_ready_0": 5, "pages_ready_1": 1}

    text = shown(*stats_tables({"scheduler": scheduler, "host": host}))

    rows = [line.split() for line in text.splitlines() if "tokens" in line and "pages" in line]
    assert rows[0][:9] == ["│", "0", "│", "all", "tokens", "│", "9", "pages", "│"]
    assert "4,096 tokens" in text
    assert "24 pages" in text
    without = {"kv_group_window_tokens_0": 0}
    assert "KV group" not in shown(*stats_tables({"scheduler": SCHEDULER | without, "host": HOST}))


def test_experts_are_shown_where_ranks_share_them() -> None:
    experts = {
        "expert_balance_mean_of_layers": 0.9312,
        "expert_balance_ratio_of_sums": 0.8765,
        "expert_time_imbalance": 1.25,
        "expert_time_imbalance_wanted": 1.03,
        "expert_moves": 1234,
        "expert_moves_left": 7,
        "expert_migration_stalled": 0.0,
        "expert_placement_version": 56,
    }

    text = shown(*stats_tables({"scheduler": {**SCHEDULER, **experts}}))
    stalled = {**experts, "expert_migration_stalled": 1.0}
    other = shown(*stats_tables({"scheduler": {**SCHEDULER, **stalled}}))

    for part in ("0.931, of sums 0.876", "1.250, planned 1.030", "1,234", "7, on its way", "56"):
        assert part in text
    assert "7, stalled" in other
    assert "Experts" not in shown(*stats_tables({"scheduler": SCHEDULER}))


def test_the_documentation_gives_every_source_with_its_meaning() -> None:
    text = (Path(__file__).resolve().parents[3] / "docs" / "http.md").read_text()
    for source, meaning in MEANINGS.items():
        assert f"| `{source.label}` | {meaning} |" in text


def test_stats_say_since_when_and_why_storage_is_left_alone() -> None:
    host = HOST | {
        "l3_breaker": "open",
        "l3_off_kind": "read",
        "l3_off_cause": "late",
        "l3_off_at_s": 1_700_000_000.0,
        "l3_exists_patience_s": 1.0,
        "l3_read_patience_s": 12.0,
        "l3_write_patience_s": 15.0,
    }
    text = shown(*stats_tables({"scheduler": SCHEDULER, "host": host, "storage": storage()}))
    assert "left alone since" in text
    assert "2023-11-1" in text
    assert "read had no answer in time" in text
    assert "exists 1 s, read 12 s, write 15 s" in text
