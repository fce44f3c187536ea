"""What the state machine of the HostMemory core draws, and its settings."""

from dataclasses import replace

from hypothesis import strategies as st

from raydix.runtime.messages.host import ObjectStatus
from tests.runtime.cache.host.host_script import STORAGE

SETTINGS = replace(
    STORAGE, batch_pages=3, max_queued_writes=6, breaker_failures=3, max_write_attempts=2
)
GROUPS = st.integers(0, 1)
NAMES = st.integers(0, 11)
STARTS = st.sampled_from([0, 0, 0, 1, 3])
CHAINS = st.builds(
    lambda first, length: list(range(first, first + length)),
    st.sampled_from([0, 1, 2, 3, 8, 9]),
    st.integers(0, 8),
)
STATUSES = st.sampled_from(
    [ObjectStatus.OK] * 4 + [ObjectStatus.IO_ERROR, ObjectStatus.FULL, ObjectStatus.TIMED_OUT]
)

LEFT_OVERS = ("leases", "lookups", "pages_reading", "pages_staged", "pages_quarantined")
"""Figures that are 0 in the end."""
