"""Settings at the edges of what may be configured: what is one, just enough, or next to nothing."""

import random
from dataclasses import replace

from raydix.runtime.cache.host.settings import StorageSettings
from raydix.runtime.scheduler.settings import SchedulerSettings
from tests.simulation.layouts import least_pages


def extreme_settings(draw: random.Random, settings: SchedulerSettings) -> SchedulerSettings:
    """Pages of any size, pools with room for one prompt, queues of one, times of any length."""
    page_size = settings.page_size if settings.has_windows else draw.choice([1, 1, 2, 3, 8, 16])
    settings = replace(
        settings,
        layout=replace(settings.layout, page_size=page_size),
        prefill_budget_tokens=max(page_size, settings.prefill_budget_tokens),
        max_running_requests=draw.choice([1, 2, 3, 16]),
        max_waiting_requests=draw.choice([1, 4, 1024, 1024]),
        max_decode_slowdown=draw.choice([1.0, 2.0, 1e9]),
        ageing_s=draw.choice([0.001, 0.1, 10.0]),
        lpm_span_s=draw.choice([0.0001, 0.2, 5.0]),
        launch_s=draw.choice([0.0, 0.001, 0.1]),
        write_threshold=draw.choice([1, 2, 5]),
        start_prefill_s=draw.choice([0.0, 0.01]),
        short_prompt_fraction=draw.choice([0.0, 0.25, 0.9]),
    )

    num_pages = [pages + draw.choice([0, 0, 1, 3]) for pages in least_pages(settings)]
    return replace(settings, num_pages=tuple(num_pages))


def extreme_storage(draw: random.Random, page_size: int) -> StorageSettings:
    """Batches and queues of one, deadlines that are missed, and nothing remembered for long."""
    return StorageSettings(
        min_tokens=draw.choice([1, page_size, 3 * page_size]),
        batch_pages=draw.choice([1, 1, 3, 32]),
        max_read_batches=draw.choice([1, 2, 4]),
        max_write_batches=draw.choice([1, 2]),
        put_off_s=draw.choice([0.05, 1.0, 10.0, 60.0]),
        max_write_attempts=draw.choice([1, 3]),
        patience_s=draw.choice([0.1, 10.0]),
        overdue_margin_s=draw.choice([0.05, 5.0]),
        min_read_patience_s=draw.choice([0.02, 2.0]),
        exists_deadline_s=draw.choice([0.05, 1.0]),
        missing_ttl_s=draw.choice([0.0, 0.001, 1.0]),
        max_missing_names=draw.choice([1, 3, 65_536]),
        exists_interval_s=draw.choice([0.0, 0.1, 60.0]),
        staged_grace_s=draw.choice([0.0, 0.01, 30.0]),
        breaker_failures=draw.choice([1, 5]),
        breaker_backoff_s=draw.choice([0.01, 1.0]),
        recheck_interval_s=draw.choice([0.01, 10.0]),
    )


def extreme_prefixes(draw: random.Random, settings: SchedulerSettings) -> tuple[int, ...]:
    """Lengths of prompts around the ends of pages, or all that the context has room for."""
    size, longest = settings.page_size, settings.max_model_len - 1
    lengths = draw.choice([(longest,), (longest - size, longest), (2 * size - 1, 2 * size + 1)])
    return tuple([max(1, length) for length in lengths])
