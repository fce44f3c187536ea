"""A request is found by its id, and by the id of the HTTP answer that it gave."""

from typing import Any

import pytest

from raydix.errors import UnknownRequest
from raydix.runtime.api.explained import explained

KNOWN = {"a", "b-0", "b-1", "cmpl-c", "c"}


async def explanation_of(name: str) -> Any:
    async def ask(request_id: str) -> dict[str, Any] | None:
        return {"request_id": request_id} if request_id in KNOWN else None

    return (await explained(ask, name))["request_id"]


@pytest.mark.parametrize(
    ("name", "request_id"),
    [
        ("a", "a"),
        ("chatcmpl-a", "a"),
        ("cmpl-a", "a"),
        ("resp_a", "a"),
        ("msg_a", "a"),
        ("chatcmpl-b", "b-0"),
        ("chatcmpl-b-1", "b-1"),
        ("cmpl-c", "cmpl-c"),
    ],
)
async def test_the_id_of_an_answer_names_its_request(name: str, request_id: str) -> None:
    assert await explanation_of(name) == request_id


@pytest.mark.parametrize("name", ["d", "b", "cmpl-d", "other-a"])
async def test_others_are_unknown(name: str) -> None:
    with pytest.raises(UnknownRequest, match=name):
        await explanation_of(name)
