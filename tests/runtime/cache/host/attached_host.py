"""A scripted HostMemory that has everybody it works with."""

from raydix.runtime.cache.host.settings import StorageSettings
from tests.runtime.cache.host.host_script import HostScript
from tests.runtime.cache.host.host_values import STORAGE


def with_storage(num_pages: int = 64, settings: StorageSettings = STORAGE) -> HostScript:
    """A storage actor is attached, then a Scheduler."""
    host = HostScript(num_pages, settings)
    host.attach_storage(50)
    host.attach_scheduler()
    return host
