"""Hints over HTTP: in our words, in those of vLLM and SGLang, of OpenAI and of Anthropic."""

from typing import Any

import pytest

from raydix.errors import BadParameter
from raydix.runtime.messages.retention import Retention, RetentionKind
from raydix.runtime.server.generation import options_of
from raydix.runtime.server.keys import Caller, Role
from raydix.runtime.server.wire.anthropic import MessagesRequest
from raydix.runtime.server.wire.generation import GenerationFields

END = Retention(kind=RetentionKind.END)
ALICE = Caller(Role.TENANT, "alice")


def keep(seconds: float) -> Retention:
    return Retention(kind=RetentionKind.KEEP, seconds=seconds)


def resume(seconds: float) -> Retention:
    return Retention(kind=RetentionKind.RESUME, seconds=seconds)


def asked(**fields: Any) -> Retention | None:
    return options_of(GenerationFields.model_validate(fields), ALICE).retention


def envelope(*actions: tuple[str, Any]) -> dict[str, Any]:
    listed = [{"action_id": "1", "action_type": kind, "payload": what} for kind, what in actions]
    return {"protocol_version": "0.1", "message_id": "m", "actions": listed}


def test_hints_are_taken_from_the_body() -> None:
    assert asked() is None
    assert asked(retention={"end": True}) == END
    assert asked(retention={"keep_s": 5.0}) == keep(5.0)
    assert asked(retention={"resume_in_s": 2.0}) == resume(2.0)


@pytest.mark.parametrize(
    ("actions", "expected"),
    [
        ([], None),
        ([("kv.retain", {"directives": [{"start": 0, "priority": 80, "duration": 9.0}]})], keep(9)),
        ([("kv.retain", {"directives": [{"priority": 0, "duration": None}]})], END),
        ([("retain", {"ttl_s": 30})], keep(30)),
        ([("kv.retain", {"directives": [{"priority": 5, "duration": None}]})], keep(86_400)),
        ([("kv.release", {})], END),
        ([("kv.deref", {})], END),
        ([("kv.prefetch", {}), ("kv.unheard_of", {"a": [1]})], resume(0)),
        ([("prefetch", {"resume_in_s": 30})], resume(30)),
        ([("kv.prefetch", {"delay_s": 2.5})], resume(2.5)),
        ([("kv.unheard_of", {"a": [1]})], None),
        ([("kv.retain", {"ttl_s": 30}), ("kv.release", {})], END),
    ],
)
def test_envelopes_are_understood(actions: Any, expected: Retention | None) -> None:
    assert asked(kv_hints=envelope(*actions)) == expected


@pytest.mark.parametrize(
    "payload", [{"directives": "all"}, {"directives": [5]}, {"ttl_s": -1}, {"ttl_s": "long"}]
)
def test_a_retain_that_says_nothing_is_refused_by_name(payload: Any) -> None:
    with pytest.raises(BadParameter, match="kv_hints"):
        asked(kv_hints=envelope(("kv.retain", payload)))


@pytest.mark.parametrize("seconds", [-1, "soon", True, float("inf"), 10**400])
def test_a_prefetch_at_no_time_is_refused_by_name(seconds: Any) -> None:
    with pytest.raises(BadParameter, match="kv_hints"):
        asked(kv_hints=envelope(("kv.prefetch", {"resume_in_s": seconds})))


def test_openai_and_anthropic_say_how_long() -> None:
    assert asked(prompt_cache_retention="24h") == keep(86_400)
    assert asked(prompt_cache_retention="in_memory") is None
    assert asked(prompt_cache_retention="24h", retention={"end": True}) == END

    cached = {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}
    longer = {**cached, "cache_control": {"type": "ephemeral", "ttl": "1h"}}
    for system, turn, expected in (
        ("s", "t", None),
        ([cached], "t", keep(300)),
        ([cached], [longer], keep(3600)),
    ):
        body = {"max_tokens": 1, "system": system, "messages": [{"role": "user", "content": turn}]}
        request = MessagesRequest.model_validate(body)
        assert options_of(request, ALICE).retention == expected
