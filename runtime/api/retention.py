"""Hints of what comes next of a session, as callers give them."""

import sys
from collections.abc import Mapping
from numbers import Real
from typing import Any

from raydix.errors import BadParameter
from raydix.runtime.api.request_options import check_text
from raydix.runtime.messages.client import RetainSession
from raydix.runtime.messages.retention import Retention, RetentionKind

_KINDS = {
    "end": RetentionKind.END,
    "keep_s": RetentionKind.KEEP,
    "resume_in_s": RetentionKind.RESUME,
}


def retention_of(hint: Mapping[str, Any] | None) -> Retention | None:
    """A hint as `AsyncLLM.retain` takes it. Raises BadParameter."""
    if hint is None:
        return None
    if isinstance(hint, Mapping) and len(hint) == 1:
        [(name, value)] = hint.items()
        kind = _KINDS.get(name)
        if kind is RetentionKind.END and value is True:
            return Retention(kind=kind)
        is_number = isinstance(value, Real) and not isinstance(value, bool)
        if kind not in (None, RetentionKind.END) and is_number and 0 <= value <= sys.float_info.max:
            return Retention(kind=kind, seconds=float(value))
    raise BadParameter(
        "retention",
        f"is {hint!r:.80}; expected one of {{'end': True}}, {{'keep_s': SECONDS}} and "
        "{'resume_in_s': SECONDS}, or None.",
    )


def hint_for(
    session_id: str, hint: Mapping[str, Any], cache_salt: str | None = None
) -> RetainSession:
    """A hint that comes without a request. Raises BadParameter."""
    return message_for(session_id, retention_of(hint), cache_salt)


def message_for(
    session_id: str, retention: Retention | None, cache_salt: str | None = None
) -> RetainSession:
    """The message of a hint that comes without a request. Raises BadParameter."""
    if retention is None or session_id is None:
        name = "session_id" if session_id is None else "retention"
        raise BadParameter(name, "is None; expected a session and what comes next of it.")
    check_text("session_id", session_id)
    check_text("cache_salt", cache_salt)
    return RetainSession(session_id=session_id, cache_salt=cache_salt, retention=retention)
