from raydix.runtime.cli.options import lazy_storage, sections_of


def test_set_is_repeatable_and_the_last_one_wins() -> None:
    settings = ["cache.l1.num_pages=1", "cache.l1.num_pages=2", "parallel.dp=3"]
    assert sections_of(settings) == {"cache": {"l1": {"num_pages": 2}}, "parallel": {"dp": 3}}


def test_lazy_is_a_key_of_l3_and_changes_no_other() -> None:
    sections = {"cache": {"l3": {"backend": "redis"}}, "parallel": {"dp": 2}}
    assert lazy_storage(False, sections) == sections
    assert lazy_storage(True, sections) == {
        "cache": {"l3": {"backend": "redis", "lazy": True}},
        "parallel": {"dp": 2},
    }
