from raydix.runtime.cli.options import sections_of


def test_set_is_repeatable_and_the_last_one_wins() -> None:
    settings = ["cache.l1.num_pages=1", "cache.l1.num_pages=2", "parallel.dp=3"]
    assert sections_of(settings) == {"cache": {"l1": {"num_pages": 2}}, "parallel": {"dp": 3}}
