"""What `raydix doctor` looked at, as each of its parts tells it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    subject: str
    is_ok: bool
    """False: Raydix will not run, or not well, until this is changed."""
    detail: str
    is_optional: bool = False
    """Whether only the thing itself cannot be used if it is not ok."""
