"""Packages that take seconds to import, and so are imported where they are used."""

import contextlib
import importlib
import sys
from collections.abc import Iterator
from typing import Any


def import_late(name: str) -> Any:
    """A package, also if another thread is importing it just now.

    Some put another module in their own place while they are imported (`transformers` does): who
    waits for that by an import statement gets the one that was left behind, which is empty.
    """
    importlib.import_module(name)
    return importlib.import_module(name)


@contextlib.contextmanager
def hidden(name: str) -> Iterator[None]:
    """What is imported meanwhile finds no package of this name, which nobody has imported yet.

    Libraries may remember for good that it is not there.
    """
    assert name not in sys.modules, f"{name} is imported already"
    # What the import system takes for a package that cannot be had; not in the stubs of `sys`.
    sys.modules[name] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[name]
