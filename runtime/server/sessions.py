"""Routes of hints that come without a request."""

from fastapi import APIRouter, Request
from fastapi.responses import Response

from raydix.runtime.api.retention import message_for
from raydix.runtime.server.json_route import JsonRoute
from raydix.runtime.server.served import REFUSALS, Served, caller_of
from raydix.runtime.server.served_models import ServedModels
from raydix.runtime.server.wire.retention import asked_retention
from raydix.runtime.server.wire.sessions import SessionHint


def session_routes(models: ServedModels) -> APIRouter:
    """The route `/v1/sessions/retention`."""
    router = APIRouter(route_class=JsonRoute)

    @router.post("/v1/sessions/retention", status_code=202, responses=REFUSALS)
    async def retain(body: SessionHint, request: Request) -> Response:
        """Tell what comes next of a session of the caller's own tenant."""
        caller = caller_of(request)
        session_id = caller.within_tenant(body.session_id)
        assert session_id is not None, "every hint names its session"
        retention = asked_retention(body.retention, body.kv_hints)
        message = message_for(session_id, retention, caller.within_tenant(body.cache_salt))

        async def tell(served: Served) -> None:
            (await served.engine.connected()).tell_all(message)

        # The engines of a model that has no such session ignore it.
        await models.ask_all(tell)
        return Response(status_code=202)

    return router
