"""What `raydix status` shows of the engines of a service: one row each, and one for all."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from raydix.runtime.actors.service.rows import TIERS
from raydix.runtime.scheduler.phase import Phase

_SHORT = 8
"""The characters of an id that people need to tell it from others."""
_TITLES = {"l1": "L1", "l2": "L2", "peer": "peers", "l3": "L3", "computed": "computed"}
_COUNTS = ("waiting", "loading", "running")
_UNKNOWN = "-"

Row = Mapping[str, Any]


def service_table(engines: Sequence[Row]) -> Table:
    """Where each engine runs, what it has to do, where the tokens of its prompts came from.

    Whatever an engine has not told is shown as unknown. Tokens are told as parts of all that its
    Scheduler has seen.
    """
    table = Table(box=None, pad_edge=False)
    for title in ("engine", "node", "role", "state"):
        table.add_column(title, no_wrap=True)
    for title in ("up", "wait", *_COUNTS, *_TITLES.values(), "pulled pages", "restarts"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("version", no_wrap=True)

    for each in engines:
        place = _place(each["address"], each["node"])
        told = (_time(each["up_s"]), _time(each["prompt_wait_s"]), *_told(each))
        weights = "" if each["fingerprint"] is None else f", model {each['fingerprint'][:_SHORT]}"
        table.add_row(
            each["name"], place, each["role"], _state(each), *told, f"{each['version']}{weights}"
        )
    if len(engines) > 1:
        table.add_section()
        table.add_row("all", "", "", "", "", "", *_told(_added(engines)))
    return table


def _state(row: Row) -> str:
    """What an engine does; one that serves may sleep, or be on its way there or back."""
    state, phase = str(row["state"]), str(row["phase"] or Phase.AWAKE.value)
    is_elsewhere = state == "serves" and phase != Phase.AWAKE.value
    return phase.partition(":")[0] if is_elsewhere else state


def _told(row: Row) -> list[str]:
    tokens: Mapping[str, int] | None = row["prompt_tokens_by_tier"]
    total = 0 if tokens is None else sum(tokens.values())
    parts = [f"{tokens[tier] / total:.0%}" if tokens and total else _UNKNOWN for tier in _TITLES]
    return [
        *(_number(row[name]) for name in _COUNTS),
        *parts,
        _pulls(row),
        _number(row["restarts"]),
    ]


def _pulls(row: Row) -> str:
    failed = row["failed_pulls"]
    return _number(row["pulled_pages"]) + (f", {failed:,} failed" if failed else "")


def _added(engines: Sequence[Row]) -> Row:
    """The row of all engines: whatever one of them has not told is left out."""
    added: dict[str, Any] = {}
    for name in (*_COUNTS, "pulled_pages", "failed_pulls", "restarts"):
        told = [each[name] for each in engines if each[name] is not None]
        added[name] = sum(told) if told else None
    by_tier = [each["prompt_tokens_by_tier"] for each in engines]
    tokens = [each for each in by_tier if each is not None]
    names = (*TIERS, "computed")
    added["prompt_tokens_by_tier"] = {name: sum(each[name] for each in tokens) for name in names}
    return added


def _place(address: str | None, node: str) -> str:
    return f"{address or 'gone'} ({node[:_SHORT]})"


def _number(number: int | None) -> str:
    return _UNKNOWN if number is None else f"{number:,}"


def _time(seconds: float | None) -> str:
    """The time in its largest unit: `3.2 s`, `14 min`, `5.1 h`, `12 d`."""
    if seconds is None:
        return _UNKNOWN
    for unit, unit_s, limit_s in (("s", 1, 120), ("min", 60, 7200), ("h", 3600, 172_800)):
        if seconds < limit_s:
            return f"{seconds / unit_s:.3g} {unit}"
    return f"{seconds / 86_400:,.0f} d"
