"""Routes below `/cache/`, whose names are LMCache's: prompts that are to be in L2, and to stay."""

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from raydix.errors import BadRequest
from raydix.ids import TenantId
from raydix.runtime.api.engine_client import EngineClient
from raydix.runtime.api.pin_names import is_pin_of
from raydix.runtime.api.pins import pin_prompt, pins_of, unpinning
from raydix.runtime.server.answers import json_answer
from raydix.runtime.server.connection import while_connected
from raydix.runtime.server.conversation import conversation_of
from raydix.runtime.server.errors import RequestRefused, failure, refused_as
from raydix.runtime.server.json_route import JsonRoute
from raydix.runtime.server.keys import Caller
from raydix.runtime.server.served import REFUSALS, Served, caller_of
from raydix.runtime.server.served_models import ServedModels
from raydix.runtime.server.wire.cache import (
    CachedPrompt,
    Pinned,
    PinRequest,
    PinShown,
    PinsShown,
    PrefetchBegun,
    PrefetchRequest,
    PrefetchShown,
)


def cache_routes(models: ServedModels) -> APIRouter:
    """The routes `/cache/prefetches` and `/cache/pins`."""
    router = APIRouter(prefix="/cache", route_class=JsonRoute, responses=REFUSALS)
    _add_prefetches(router, models)
    _add_pins(router, models)
    return router


def _add_prefetches(router: APIRouter, models: ServedModels) -> None:
    @router.post("/prefetches", response_model=PrefetchBegun, status_code=202)
    async def prefetch(body: PrefetchRequest, request: Request) -> Response:
        """Begin to bring to L2 what L3 has of a prompt."""
        caller, served = caller_of(request), models.of(body.model)

        async def work() -> str:
            client = await served.engine.connected()
            token_ids = await _token_ids(client, body, caller)
            return await client.begin_prefetch(token_ids, caller.within_tenant(body.cache_salt))

        begun = PrefetchBegun(request_id=await while_connected(request.receive, work()))
        return json_answer(begun, status=202)

    @router.get("/prefetches/{request_id}", response_model=PrefetchShown)
    async def prefetch_state(request_id: str, request: Request) -> Response:
        """How far a prefetch of the caller's tenant has come."""
        told = await models.ask_all(lambda served: served.engine.prefetch_state(request_id))
        state = next((each for each in told.values() if each is not None), None)
        if state is None or not caller_of(request).owns(TenantId(state["tenant_id"])):
            text = (
                f"There is no prefetch {request_id!r:.80} of yours, or others have ended since. "
                "POST /cache/prefetches tells the name of each."
            )
            kind = "invalid_request_error"
            raise RequestRefused(failure(404, text, kind, code="prefetch_not_found"))
        shown = PrefetchShown(
            request_id=request_id,
            status=state["status"],
            found_keys=state["num_found_pages"],
            total_keys=state["num_pages"],
            tokens_by_source=state["tokens_by_source"],
        )
        return json_answer(shown)


def _add_pins(router: APIRouter, models: ServedModels) -> None:
    @router.post("/pins", response_model=Pinned)
    async def pin(body: PinRequest, request: Request) -> Response:
        """Bring to L2 what L3 has of a prompt, and hold what is there of it for a while."""
        caller, served = caller_of(request), models.of(body.model)

        async def work() -> Pinned:
            client = await served.engine.connected()
            token_ids = await _token_ids(client, body, caller)
            salt = caller.within_tenant(body.cache_salt)
            pinned = await pin_prompt(client, token_ids, body.keep_s, salt)
            return Pinned(
                pin_id=pinned.pin_id if pinned.num_pinned_tokens else None,
                pinned_tokens=pinned.num_pinned_tokens,
                tokens_by_source=pinned.tokens_by_source,
            )

        return json_answer(await while_connected(request.receive, work()))

    @router.get("/pins", response_model=PinsShown)
    async def pins(request: Request) -> Response:
        """All pins of the caller's tenant."""
        caller = caller_of(request)
        found = await models.ask_all(lambda served: _pins_of(served, caller))
        return json_answer(
            PinsShown(pins=[_shown(pin) for each in found.values() for pin in each or ()])
        )

    @router.delete("/pins", response_model=PinShown)
    async def release_prompt(body: CachedPrompt, request: Request) -> Response:
        """Release the oldest pin of a prompt: who has pinned it twice releases it twice."""
        caller = caller_of(request)
        return json_answer(_shown(await _released(models.of(body.model), body, caller)))

    @router.delete("/pins/{pin_id}", status_code=204)
    async def release(pin_id: str, request: Request) -> Response:
        """Hold a prompt no more that the caller's tenant has pinned."""
        await _release(models, pin_id, caller_of(request))
        return Response(status_code=204)


async def _release(models: ServedModels, pin_id: str, caller: Caller) -> None:
    """Release the pin of this name, of whatever model. Raises RequestRefused if there is none."""
    found = await models.ask_all(lambda served: _pins_of(served, caller))
    for served in models.all:
        for pin in found[served.model_name] or ():
            if pin["pin_id"] == pin_id:
                (await served.engine.connected()).tell_all(unpinning(pin))
                return
    raise _no_pin(f"There is no pin {pin_id!r:.80} of yours.")


async def _token_ids(client: EngineClient, body: CachedPrompt, caller: Caller) -> list[int]:
    """The prompt that a body names, as the client's version reads it. Raises BadRequest."""
    given = [body.prompt, body.token_ids, body.messages]
    if sum(each is not None for each in given) != 1:
        raise BadRequest("Exactly one of prompt, token_ids and messages is expected. Set one.")
    if body.token_ids is not None:
        return body.token_ids

    desk = client.texts
    if body.prompt is not None:
        with refused_as("prompt"):
            return await desk.encode(body.prompt, caller.tenant)
    assert body.messages is not None, "one of them is set"
    conversation = conversation_of(body.messages, body, field="messages")
    return await conversation.token_ids(desk, caller.tenant)


async def _released(served: Served, body: CachedPrompt, caller: Caller) -> dict[str, Any]:
    """The oldest pin of a prompt, which is released. Raises RequestRefused if there is none."""
    client = await served.engine.connected()
    token_ids = (await client.tokenized(await _token_ids(client, body, caller))).token_ids
    salt = caller.within_tenant(body.cache_salt)
    for pin in await _pins_of(served, caller):
        if is_pin_of(pin["pin_id"], token_ids, salt):
            client.tell_all(unpinning(pin))
            return pin
    raise _no_pin("There is no pin of this prompt.")


def _no_pin(what: str) -> RequestRefused:
    text = f"{what} GET /cache/pins lists those that are."
    return RequestRefused(failure(404, text, "invalid_request_error", code="pin_not_found"))


async def _pins_of(served: Served, caller: Caller) -> list[dict[str, Any]]:
    pins = pins_of(await served.engine.stats_by_engine())
    return [pin for pin in pins if caller.owns(TenantId(pin["tenant_id"]))]


def _shown(pin: dict[str, Any]) -> PinShown:
    return PinShown(
        pin_id=pin["pin_id"],
        pinned_tokens=pin["pinned_tokens"],
        bytes=pin["bytes"],
        left_s=pin["left_s"],
    )
