"""Packages that take seconds to import, and so are imported where they are used."""

import importlib
from typing import Any


def import_late(name: str) -> Any:
    """A package, also if another thread is importing it just now.

    Some put another module in their own place while they are imported (`transformers` does): who
    waits for that by an import statement gets the one that was left behind, which is empty.
    """
    importlib.import_module(name)
    return importlib.import_module(name)
