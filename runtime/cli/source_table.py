"""Prompt tokens by where they came from, added up and shown."""

from collections.abc import Mapping

from rich.table import Table

TIERS = ("l1", "l2", "l3")
"""The tiers of a node itself."""
_TITLES = {
    "l1": "L1 (GPU actor's pages)",
    "l2": "L2 (host arena)",
    "peer": "L2 of other nodes",
    "l3": "L3 (storage)",
    "computed": "computed",
}


def by_tier(tokens_by_source: Mapping[str, int]) -> dict[str, int]:
    """Tokens of each tier and those `computed` for any reason; all are there, even if zero."""
    totals = dict.fromkeys(_TITLES, 0)
    for source, num_tokens in tokens_by_source.items():
        totals[source.partition(":")[0]] += num_tokens
    return totals


def source_table(columns: Mapping[str, Mapping[str, int]]) -> Table:
    """A row per tier with its tokens and their share in each column.

    Other nodes have a row if anything came from there. columns: titles, and for each the tokens by
    source.
    """
    totals = {title: by_tier(tokens) for title, tokens in columns.items()}
    table = Table(title="Prompt tokens by source")
    table.add_column("source")
    for title in totals:
        table.add_column(title, justify="right")

    for tier, label in _TITLES.items():
        if tier == "peer" and not any(column[tier] for column in totals.values()):
            continue
        table.add_row(
            label, *(_cell(column[tier], sum(column.values())) for column in totals.values())
        )
    table.add_section()
    table.add_row("all", *(f"{sum(column.values()):,}" for column in totals.values()))
    return table


def _cell(num_tokens: int, total: int) -> str:
    return f"{num_tokens:,} ({num_tokens / total:5.1%})" if total else "0"
