"""The garbage collector of a process that serves."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_YOUNG_OBJECTS = 10_000
"""The number of new objects that are looked at together; by default 700, which a few requests make.
"""


def spare_long_lived_objects() -> None:
    """Never look again at what there is now: call it when the process is about to serve.

    The modules of a server are some 500,000 objects. To go through them takes longer than several
    steps of the engine, all streams wait meanwhile, and none of them ever becomes garbage. Of a
    simulation it is some hundredths of the time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS, *gc.get_threshold()[1:])


@contextmanager
def garbage_kept() -> Iterator[None]:
    """Collect what is garbage now, and nothing until the end of the block, in any thread."""
    gc.collect()
    with nothing_collected():
        yield


@contextmanager
def nothing_collected() -> Iterator[None]:
    """Collect nothing until the end of the block, in any thread.

    To import a large package takes a tenth less: what is collected meanwhile is looked through
    again and again, and next to nothing of it is garbage.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
