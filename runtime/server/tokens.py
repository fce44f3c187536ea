"""`/tokenize` and `/detokenize`."""

from collections.abc import Sequence

from fastapi import APIRouter, Request
from fastapi.responses import Response

from raydix.errors import BadParameter, BadRequest
from raydix.runtime.api.model_limits import ModelLimits
from raydix.runtime.server.answers import json_answer
from raydix.runtime.server.connection import while_connected
from raydix.runtime.server.conversation import conversation_of
from raydix.runtime.server.errors import refused_as
from raydix.runtime.server.json_route import JsonRoute
from raydix.runtime.server.served import REFUSALS, Served, caller_of
from raydix.runtime.server.served_models import ServedModels
from raydix.runtime.server.wire.tokens import (
    Detokenized,
    DetokenizeRequest,
    TokenizeRequest,
    Tokens,
)


def token_routes(models: ServedModels) -> APIRouter:
    """The routes `/tokenize` and `/detokenize`."""
    router = APIRouter(route_class=JsonRoute)

    @router.post("/tokenize", response_model=Tokens, responses=REFUSALS)
    async def tokenize(body: TokenizeRequest, request: Request) -> Response:
        """Token ids of text, or of a conversation."""
        served = models.of(body.model)
        token_ids = await while_connected(
            request.receive, _token_ids(served, body, caller_of(request).tenant)
        )
        limits = await served.engine.limits()
        return json_answer(
            Tokens(tokens=token_ids, count=len(token_ids), max_model_len=limits.max_model_len)
        )

    @router.post("/detokenize", response_model=Detokenized, responses=REFUSALS)
    async def detokenize(body: DetokenizeRequest, request: Request) -> Response:
        """Text of token ids."""
        served = models.of(body.model)
        client = await served.engine.connected()
        _check(body.tokens, client.limits)
        work = client.texts.decode(body.tokens, caller_of(request).tenant)
        text = await while_connected(request.receive, work)
        return json_answer(Detokenized(prompt=text))

    return router


def _check(token_ids: Sequence[int], limits: ModelLimits) -> None:
    """Raise BadParameter for ids that no context holds."""
    if len(token_ids) > limits.max_model_len:
        problem = f"has {len(token_ids)} ids; expected at most {limits.max_model_len}."
        raise BadParameter("tokens", problem)
    for token_id in token_ids:
        if not 0 <= token_id < limits.vocab_size:
            problem = f"has {token_id}; expected ids from 0 to {limits.vocab_size - 1}."
            raise BadParameter("tokens", problem)


async def _token_ids(served: Served, body: TokenizeRequest, tenant: str | None) -> list[int]:
    if (body.prompt is None) == (body.messages is None):
        raise BadRequest("Exactly one of prompt and messages is expected. Set one of them.")
    desk = (await served.engine.connected()).texts
    if body.prompt is not None:
        with refused_as("prompt"):
            return await desk.encode(body.prompt, tenant)
    assert body.messages is not None, "one of them is set"
    return await conversation_of(body.messages, body, field="messages").token_ids(desk, tenant)
