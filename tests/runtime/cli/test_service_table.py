"""The table of a service's engines, as people see it."""

import io
from typing import Any

from rich.console import Console

from raydix.runtime.actors.service.rows import load_row
from raydix.runtime.cli.service_table import service_table

STATS: dict[str, Any] = {
    "scheduler": {
        "prompt_wait_s": 0.412,
        "num_requests_waiting": 3,
        "num_requests_loading": 0,
        "num_requests_running": 12,
        "prompt_tokens_l1": 3000,
        "prompt_tokens_computed:not_found": 1000,
    },
    "host": {"peers": 1, "peer_reads_ok": 1203, "peer_reads_io_error": 2},
    "restarts": {"gpu0": 1},
}


def row(name: str, stats: dict[str, Any] | None, **own: Any) -> dict[str, Any]:
    return {
        "name": name,
        "role": "decode",
        "state": "serves",
        "address": "10.0.0.3",
        "node": "f3a1b2c4d5",
        "version": "0.1.0",
        "up_s": 4000.0,
        "fingerprint": "aabbccddee",
        **load_row(stats),
    } | own


def told(*engines: dict[str, Any]) -> list[list[str]]:
    console = Console(width=240, record=True, file=io.StringIO())
    console.print(service_table(engines))
    return [line.split("  ") for line in console.export_text().splitlines()]


def cells(line: list[str]) -> list[str]:
    return [each.strip() for each in line if each.strip()]


def test_an_engine_has_its_node_its_load_and_where_its_prompts_came_from() -> None:
    line = cells(told(row("prod/1", STATS))[1])
    assert line == [
        *(
            "prod/1",
            "10.0.0.3 (f3a1b2c4)",
            "decode",
            "serves",
            "66.7 min",
            "0.412 s",
            "3",
            "0",
            "12",
        ),
        *("75%", "0%", "0%", "0%", "25%", "1,203, 2 failed", "1", "0.1.0, model aabbccdd"),
    ]


def test_an_engine_that_has_told_nothing_is_shown_as_unknown() -> None:
    starting = row("prod/2", None, state="starts", up_s=None, fingerprint=None)
    line = cells(told(starting)[1])
    assert line == ["prod/2", "10.0.0.3 (f3a1b2c4)", "decode", "starts", *["-"] * 12, "0.1.0"]


def test_all_engines_are_added_up_but_for_what_is_not_told() -> None:
    lines = told(row("prod/1", STATS), row("prod/2", STATS), row("prod/3", None))
    assert cells(lines[-1]) == [
        *("all", "6", "0", "24", "75%", "0%", "0%", "0%", "25%", "2,406, 4 failed", "2")
    ]


def test_a_node_that_is_gone_is_said_to_be() -> None:
    assert "gone (f3a1b2c4)" in cells(told(row("prod/1", STATS, address=None))[1])


def test_an_engine_that_sleeps_does_not_serve() -> None:
    for phase, state in (("asleep", "asleep"), ("falling asleep: requests end", "falling asleep")):
        asleep = {**STATS, "scheduler": STATS["scheduler"] | {"phase": phase}}
        assert cells(told(row("prod/1", asleep))[1])[3] == state
    awake = {**STATS, "scheduler": STATS["scheduler"] | {"phase": "awake"}}
    assert cells(told(row("prod/1", awake))[1])[3] == "serves"
