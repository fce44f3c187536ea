"""Hints as callers give them."""

import re
from typing import Any

import pytest

from raydix.errors import BadParameter
from raydix.runtime.api.retention import hint_for, retention_of
from raydix.runtime.messages.retention import Retention, RetentionKind


@pytest.mark.parametrize(
    ("hint", "expected"),
    [
        (None, None),
        ({"end": True}, Retention(kind=RetentionKind.END)),
        ({"keep_s": 60}, Retention(kind=RetentionKind.KEEP, seconds=60.0)),
        ({"resume_in_s": 0.5}, Retention(kind=RetentionKind.RESUME, seconds=0.5)),
    ],
)
def test_hints_are_read(hint: Any, expected: Retention | None) -> None:
    assert retention_of(hint) == expected


@pytest.mark.parametrize(
    "hint",
    [
        {},
        {"end": False},
        {"end": 1},
        {"end": True, "keep_s": 1},
        {"keep_s": -1},
        {"keep_s": float("inf")},
        {"keep_s": float("nan")},
        {"keep_s": 10**400},
        {"keep_s": True},
        {"keep_s": "60"},
        {"pin": 1},
        "end",
        5,
    ],
)
def test_other_hints_are_refused_by_name(hint: Any) -> None:
    with pytest.raises(BadParameter, match="retention"):
        retention_of(hint)


@pytest.mark.parametrize(
    ("session_id", "hint", "told"),
    [
        (None, {"end": True}, "session_id is None; expected the name"),
        ("", {"end": True}, "session_id"),
        ("s", None, "retention is None; expected one of {'end': True}, {'keep_s': SECONDS}"),
    ],
)
def test_a_hint_without_a_request_names_a_session(session_id: Any, hint: Any, told: str) -> None:
    with pytest.raises(BadParameter, match=re.escape(told)):
        hint_for(session_id, hint)
    assert hint_for("s", {"end": True}, "salt").cache_salt == "salt"
