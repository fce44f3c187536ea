"""How many host pages are in each state, and whether so many have a holder on record."""

from collections import Counter
from collections.abc import Sequence

from raydix.errors import AccountingError
from raydix.runtime.cache.host.index import HostIndex
from raydix.runtime.cache.host.pages import HostPageState


def page_figures(index: HostIndex, page_bytes: Sequence[int]) -> dict[str, int]:
    """Count pages and slabs for `stats`. `page_bytes`: of each KV group's pages."""
    figures: Counter[str] = Counter()
    for group, size in enumerate(page_bytes):
        counts = index.count_by_state(group)
        figures["ready_bytes"] += counts[HostPageState.READY] * size
        for state, count in counts.items():
            name = f"pages_{state.name.lower()}"
            # Of all groups together, then of this one.
            figures[name] += count
            figures[f"{name}_{group}"] = count

    return {
        **figures,
        "slabs_bytes": index.slabs_bytes,
        "slabs_unused": index.num_unused_slabs,
        "slabs_taken": index.num_slabs_taken,
    }


def check_holders(
    index: HostIndex, *, num_granted: int, num_reading: int, num_quarantined: int, num_pins: int
) -> None:
    """Raise AccountingError, with the figures, if some page in use has no holder or two."""
    counts: Counter[HostPageState] = Counter()
    for group in range(index.num_groups):
        counts.update(index.count_by_state(group))

    if counts[HostPageState.FILLING] != num_granted + num_reading:
        raise AccountingError(
            f"{counts[HostPageState.FILLING]} pages are FILLING; {num_granted} are granted and "
            f"{num_reading} are being read"
        )
    if counts[HostPageState.QUARANTINED] != num_quarantined:
        raise AccountingError(
            f"{counts[HostPageState.QUARANTINED]} pages are QUARANTINED; "
            f"{num_quarantined} are on record"
        )
    if index.num_readers != num_pins:
        raise AccountingError(f"pages have {index.num_readers} readers; {num_pins} are on record")
