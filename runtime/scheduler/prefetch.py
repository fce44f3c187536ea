"""When may a request run whose pages are still on their way from L3? Pure decisions."""

from raydix.runtime.scheduler.settings import PrefetchSettings, PrefetchStrategy


def prefetch_deadline_s(
    settings: PrefetchSettings, *, first_runnable_s: float, pending_tokens: int, recompute_s: float
) -> float | None:
    """The time from which a runnable request no longer waits for its prefetch; None: it waits until all is there.

    `first_runnable_s`: when it would have been admitted but for its prefetch. `recompute_s`: predicted time to compute
    the `pending_tokens` instead.
    """
    match settings.strategy:
        case PrefetchStrategy.BEST_EFFORT:
            return first_runnable_s
        case PrefetchStrategy.WAIT_COMPLETE:
            return None
        case PrefetchStrategy.TIMEOUT:
            patience_s = settings.base_s + settings.per_1k_tokens_s * pending_tokens / 1024
            if settings.cap_at_recompute:
                patience_s = min(patience_s, recompute_s)
            return first_runnable_s + patience_s
