"""`/tokenize` and `/detokenize`."""

from fastapi import APIRouter, Request
from fastapi.responses import Response

from raydix.errors import BadParameter, BadRequest
from raydix.runtime.server.answers import json_answer
from raydix.runtime.server.connection import while_connected
from raydix.runtime.server.json_route import JsonRoute
from raydix.runtime.server.served import REFUSALS, Served
from raydix.runtime.server.wire.messages import template_messages
from raydix.runtime.server.wire.tokens import (
    Detokenized,
    DetokenizeRequest,
    TokenizeRequest,
    Tokens,
)


def token_routes(served: Served) -> APIRouter:
    """Both routes."""
    router = APIRouter(route_class=JsonRoute)

    @router.post("/tokenize", response_model=Tokens, responses=REFUSALS)
    async def tokenize(body: TokenizeRequest, request: Request) -> Response:
        """Token ids of text, or of a conversation."""
        served.check_model(body.model)
        token_ids = await while_connected(request.receive, _token_ids(served, body))
        limits = await served.engine.limits()
        return json_answer(
            Tokens(tokens=token_ids, count=len(token_ids), max_model_len=limits.max_model_len)
        )

    @router.post("/detokenize", response_model=Detokenized, responses=REFUSALS)
    async def detokenize(body: DetokenizeRequest, request: Request) -> Response:
        """Text of token ids."""
        served.check_model(body.model)
        client = await served.engine.connected()
        vocab_size = client.limits.vocab_size
        for token_id in body.tokens:
            if not 0 <= token_id < vocab_size:
                problem = f"has {token_id}; expected ids from 0 to {vocab_size - 1}."
                raise BadParameter("tokens", problem)
        text = await while_connected(request.receive, client.texts.decode(body.tokens))
        return json_answer(Detokenized(prompt=text))

    return router


async def _token_ids(served: Served, body: TokenizeRequest) -> list[int]:
    if (body.prompt is None) == (body.messages is None):
        raise BadRequest("Exactly one of prompt and messages is expected. Set one of them.")
    desk = (await served.engine.connected()).texts
    if body.prompt is not None:
        return await desk.encode(body.prompt)
    assert body.messages is not None, "one of them is set"
    return await desk.encode_chat(template_messages(body.messages))
