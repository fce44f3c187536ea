"""What somebody probably meant who wrote a name that is not known."""

import difflib
from collections.abc import Iterable

_MAX_CHARACTERS = 128
"""Longer ones are near no name of ours, and comparing them takes its time."""


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that is most like `name`; None if none is much like it."""
    if len(name) > _MAX_CHARACTERS:
        return None
    return next(iter(difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)), None)
