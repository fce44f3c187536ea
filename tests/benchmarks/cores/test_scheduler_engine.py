"""The cores on a virtual clock: every request ends, whatever its prompt."""

from benchmarks.cores.scheduler_bench import settings_of
from benchmarks.cores.scheduler_engine import Engine


def test_prompt_that_is_hashed_in_many_parts_at_one_time_ends() -> None:
    engine = Engine(settings_of(1, 8192), l2_pages=8192)
    engine.submit(range(6000), max_tokens=2)
    engine.run()
    assert engine.sources == {"computed:not_found": 6000}
