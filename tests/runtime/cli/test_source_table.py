import io

from rich.console import Console

from raydix.runtime.cli.source_table import by_tier, source_table


def test_reasons_to_compute_are_folded() -> None:
    sources = {"l1": 16, "computed:last_token": 1, "computed:not_found": 32}
    assert by_tier(sources) == {"l1": 16, "l2": 0, "peer": 0, "l3": 0, "computed": 33}


def test_the_table_shows_tokens_and_shares() -> None:
    console = Console(width=100, file=io.StringIO())
    console.print(
        source_table(
            {"cold": {"computed:not_found": 100}, "warm": {"l1": 75, "l3": 25}, "none": {}}
        )
    )
    text = console.file.getvalue()
    assert "75 (75.0%)" in text
    assert "25 (25.0%)" in text
    assert "100 (100.0%)" in text
    assert "other nodes" not in text


def test_pages_of_other_nodes_have_a_row_where_there_are_some() -> None:
    console = Console(width=100, file=io.StringIO())
    console.print(source_table({"cold": {"peer": 25, "l1": 75}, "none": {}}))
    assert "L2 of other nodes" in console.file.getvalue()
    assert "25 (25.0%)" in console.file.getvalue()
