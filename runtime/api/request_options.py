"""What a caller may ask of the Scheduler besides tokens, checked before it is sent."""

import sys
from dataclasses import dataclass, field
from numbers import Integral, Real

from raydix.errors import BadParameter, BadRequest
from raydix.runtime.api.prompts import is_unicode
from raydix.runtime.messages.retention import Retention

_MAX_TEXT = 1024
"""The most characters of an id or a salt."""
_MAX_PRIORITY = 2**31


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOptions:
    """How the Scheduler should treat a request; see `AsyncLLM.generate`."""

    priority: int = 0
    cache_salt: str | None = field(default=None, repr=False)
    session_id: str | None = None
    routing_key: str | None = None
    deadline_s: float | None = None
    sample_of: str | None = None
    retention: Retention | None = None

    def check(self) -> None:
        """Raise BadParameter for what would fail in the Scheduler, which serves others, too."""
        check_text("cache_salt", self.cache_salt)
        check_text("session_id", self.session_id)
        check_text("routing_key", self.routing_key)
        check_text("sample_of", self.sample_of)

        priority, deadline_s = self.priority, self.deadline_s
        if not (_is(priority, Integral) and abs(priority) <= _MAX_PRIORITY):
            raise BadParameter(
                "priority", f"is {priority!r:.80}; expected a whole number from -2**31 to 2**31."
            )
        if deadline_s is not None and not (
            _is(deadline_s, Real) and 0 < deadline_s <= sys.float_info.max
        ):
            raise BadParameter(
                "deadline_s", f"is {deadline_s!r:.80}; expected more than 0 seconds, or None."
            )


def check_text(name: str, text: str | None) -> None:
    """Raise BadParameter unless `text` can travel as an id or a salt; None can."""
    if text is None:
        return
    if not (isinstance(text, str) and 0 < len(text) <= _MAX_TEXT and is_unicode(text)):
        raise BadParameter(
            name, f"is {text!r:.80}; expected a str of 1 to {_MAX_TEXT} characters, or None."
        )


def _is(value: object, kind: type) -> bool:
    """Whether a value is of this kind; True and False do not count as numbers."""
    return isinstance(value, kind) and not isinstance(value, bool)


def check_switch(name: str, value: object) -> bool:
    """Raise BadRequest unless it is True or False; what else counts as true may mean the other."""
    if not isinstance(value, bool):
        raise BadRequest(f"{name} is {value!r}; expected True or False.")
    return value
