"""The six figures that the README shows, as rows of a table."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.records.rows import cells, device


@dataclass(frozen=True, slots=True, kw_only=True)
class Headline:
    """A figure of a record, and how the README calls it."""

    says: str
    benchmark: str
    figure: str


HEADLINES = (
    Headline(
        says="First token of a prompt of 16,400 tokens, all of it computed",
        benchmark="cold_prefill",
        figure="TTFT, 16400 tokens, cold",
    ),
    Headline(
        says="... all but its last 16 tokens found in L2",
        benchmark="reload",
        figure="TTFT, L2 hit, page 64",
    ),
    Headline(
        says="Loading pages from L2, bandwidth",
        benchmark="reload",
        figure="load, page 64",
    ),
    Headline(
        says="Each next token of 64 requests that decode together",
        benchmark="decode_tpot",
        figure="TPOT, batch 64",
    ),
    Headline(
        says="Tokens of 128 streams through Ray actors",
        benchmark="actor_overhead",
        figure="throughput, 128 streams",
    ),
    Headline(
        says="Time to the first token, 95th percentile, while L3 does not answer, "
        "over the same without L3",
        benchmark="storage_faults_black_hole",
        figure="p95 TTFT over that without L3",
    ),
)


def render_headlines(
    records: Iterable[Mapping[str, Any]], headlines: Iterable[Headline] = HEADLINES
) -> str:
    """A Markdown table with a row per headline. Raises KeyError if its figure is not kept."""
    figures = {
        (record["benchmark"], figure["name"]): (record, figure)
        for record in records
        for figure in record["figures"]
    }
    lines = [
        "| what | measured | bar | beside it in the same run | on |",
        "|---|---|---|---|---|",
    ]

    for headline in headlines:
        record, figure = figures[headline.benchmark, headline.figure]
        lines.append(f"| {headline.says} | {cells(figure)} | {device(record)} |")
    return "\n".join(lines)
