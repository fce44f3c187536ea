"""What `raydix bench` shows to people."""

from collections.abc import Iterator, Mapping

from rich.table import Table

from raydix.runtime.cli.load.report import PERCENTILES, Summary, tier_shares

_UNITS = {"TTFT": "TTFT, ms", "TPOT": "TPOT, ms", "latency": "latency, ms"}


def tables(summaries: Mapping[str, Summary]) -> Iterator[Table]:
    """Times, then everything else; a column per load, by its title."""
    yield _times_table(summaries)
    yield _rates_table(summaries)


def _times_table(summaries: Mapping[str, Summary]) -> Table:
    table = Table(title="Times of requests")
    for title in ("", "", *(f"p{percent}" for percent in PERCENTILES)):
        table.add_column(title, justify="right")

    for title, summary in summaries.items():
        for name, ranks in summary.ms.items():
            table.add_row(title, _UNITS[name], *(f"{value:,.2f}" for value in ranks.values()))
        table.add_section()
    return table


def _rates_table(summaries: Mapping[str, Summary]) -> Table:
    rows = {title: dict(_rows(summary)) for title, summary in summaries.items()}
    names = dict.fromkeys(name for each in rows.values() for name in each)

    table = Table(title="The load as a whole")
    for title in ("", *rows):
        table.add_column(title, justify="right")
    for name in names:
        table.add_row(name, *(each.get(name, "") for each in rows.values()))
    return table


def _rows(summary: Summary) -> Iterator[tuple[str, str]]:
    yield "requests", f"{summary.num_requests:,}"
    yield "of these measured", f"{summary.num_measured:,}"
    yield "failed", f"{sum(summary.errors.values()):,}"
    yield "seconds", f"{summary.duration_s:,.2f}"
    yield "requests per s", f"{summary.requests_per_s:,.2f}"
    yield "prompt tokens per s", f"{summary.prompt_tokens_per_s:,.0f}"
    yield "output tokens per s", f"{summary.output_tokens_per_s:,.0f}"

    if summary.goodput_per_s is not None and summary.good_fraction is not None:
        share = f"{summary.good_fraction:.1%}"
        yield "goodput, requests per s", f"{summary.goodput_per_s:,.2f} ({share} within the SLO)"
    if summary.lag_ms is not None:
        yield "sent late by, p99 in ms", f"{summary.lag_ms:,.2f}"
    for tier, share_of_tokens in tier_shares(summary).items():
        yield f"prompt tokens: {tier}", f"{share_of_tokens:.1%}"
