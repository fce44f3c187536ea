"""Hints of what comes next of a session, as callers give them."""

from collections.abc import Mapping
from typing import Any

from raydix.errors import BadParameter
from raydix.runtime.api.request_options import check_text
from raydix.runtime.messages.client import RetainSession
from raydix.runtime.messages.retention import RETENTION_FORMS, Retention, retention_from


def retention_of(hint: Mapping[str, Any] | None) -> Retention | None:
    """A hint as `AsyncLLM.retain` takes it. Raises BadParameter."""
    if hint is None:
        return None
    retention = retention_from(hint)
    if retention is None:
        raise BadParameter(
            "retention", f"is {hint!r:.80}; expected one of {RETENTION_FORMS}, or None."
        )
    return retention


def hint_for(
    session_id: str, hint: Mapping[str, Any], cache_salt: str | None = None
) -> RetainSession:
    """A hint that comes without a request. Raises BadParameter."""
    return message_for(session_id, retention_of(hint), cache_salt)


def message_for(
    session_id: str, retention: Retention | None, cache_salt: str | None = None
) -> RetainSession:
    """The message of a hint that comes without a request. Raises BadParameter."""
    if session_id is None:
        raise BadParameter("session_id", "is None; expected the name of a session.")
    if retention is None:
        raise BadParameter("retention", f"is None; expected one of {RETENTION_FORMS}.")
    check_text("session_id", session_id)
    check_text("cache_salt", cache_salt)
    return RetainSession(session_id=session_id, cache_salt=cache_salt, retention=retention)
