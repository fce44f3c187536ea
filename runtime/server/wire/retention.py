"""JSON of hints: what comes next of a session, in our words and in those of others."""

import sys
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from raydix.errors import BadParameter
from raydix.runtime.api.retention import retention_of
from raydix.runtime.messages.retention import Retention, RetentionKind
from raydix.runtime.server.wire.base import Items, Table, Text, WireRequest

_DAY_S = 86_400.0
_Seconds = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
CacheRetention = Literal["in_memory", "in-memory", "24h"]
"""OpenAI's names of how long a prompt is kept."""


class RetentionHint(WireRequest):
    """A hint of what comes next of a session: exactly one of these."""

    end: Literal[True] | None = None
    keep_s: _Seconds | None = None
    resume_in_s: _Seconds | None = None


class HintAction(WireRequest):
    """One action of an envelope; those of types that are not known here are left alone."""

    action_id: Text = ""
    action_type: Text
    action_version: Text = ""
    payload: Table[Text, Any] = Field(default_factory=dict)


class KvHints(WireRequest):
    """The envelope of hints that vLLM and SGLang share."""

    protocol_version: Text = ""
    message_id: Text = ""
    actions: Annotated[Items[HintAction], Field(max_length=16)] = Field(default_factory=list)


def asked_retention(
    hint: RetentionHint | None,
    envelope: KvHints | None = None,
    named: CacheRetention | None = None,
    keep_s: float | None = None,
) -> Retention | None:
    """The hint that a request brings: the most explicit one. Raises BadParameter.

    keep_s: for how long other words of the request ask to keep its prompt.
    """
    if hint is not None:
        return retention_of(hint.model_dump(exclude_none=True))
    found = None if envelope is None else _of_actions(envelope.actions)
    seconds = _DAY_S if named == "24h" else keep_s
    if found is not None or seconds is None:
        return found
    return Retention(kind=RetentionKind.KEEP, seconds=seconds)


def _of_actions(actions: list[HintAction]) -> Retention | None:
    """What the last action that is known says; `kv.retain` with priority 0 is a release."""
    found = None
    for action in actions:
        match action.action_type.removeprefix("kv."):
            case "retain" | "pin":
                found = _of_retain(action.payload)
            case "release" | "deref":
                found = Retention(kind=RetentionKind.END)
            case "prefetch":
                found = _of_prefetch(action.payload)
            case _:
                continue
    return found


def _of_prefetch(payload: Mapping[str, Any]) -> Retention:
    """The session goes on in so long, at once if nothing is said: its pages are brought to L2."""
    seconds = payload.get("resume_in_s", payload.get("delay_s", 0.0))
    return Retention(kind=RetentionKind.RESUME, seconds=_seconds(seconds))


def _of_retain(payload: Mapping[str, Any]) -> Retention:
    """The longest time of the directives; none says for ever, which is as long as is allowed."""
    directives = payload.get("directives", [payload])
    if not isinstance(directives, list) or not all(isinstance(each, dict) for each in directives):
        raise BadParameter("kv_hints", "has directives that are no list of objects.")
    kept = [each for each in directives if each.get("priority", 1) != 0]
    if not kept:
        return Retention(kind=RetentionKind.END)
    times = [each.get("duration", each.get("ttl_s")) for each in kept]
    longest = max([_DAY_S if each is None else _seconds(each) for each in times], default=_DAY_S)
    return Retention(kind=RetentionKind.KEEP, seconds=longest)


def _seconds(value: Any) -> float:
    """A duration of an action's payload. Raises BadParameter."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (is_number and 0 <= value <= sys.float_info.max):
        raise BadParameter("kv_hints", f"has the duration {value!r:.40}; expected seconds.")
    return float(value)
