"""The admin's routes: look into the cache, empty it, change its storage."""

from fastapi import APIRouter
from fastapi.responses import Response

from raydix.runtime.config.paths import require_absolute_l3
from raydix.runtime.server.answers import json_figures
from raydix.runtime.server.json_route import JsonRoute
from raydix.runtime.server.served import REFUSALS, Served
from raydix.runtime.server.wire.admin import AttachRequest, FlushRequest


def admin_routes(served: Served) -> APIRouter:
    """The routes, all below `/admin/`."""
    router = APIRouter(prefix="/admin/cache", responses=REFUSALS, route_class=JsonRoute)

    @router.get("/stats")
    async def stats() -> Response:
        """Figures of every actor."""
        return json_figures(await served.engine.stats())

    @router.post("/flush")
    async def flush(body: FlushRequest) -> Response:
        """Drop cached pages that no request uses; tells what was dropped."""
        return json_figures(await served.engine.flush(body.l3))

    @router.post("/attach")
    async def attach(body: AttachRequest) -> Response:
        """Use another L3 backend from now on; paths are absolute, of the engine's host."""
        require_absolute_l3(body.l3)
        return json_figures(await served.engine.attach_storage(body.l3))

    @router.post("/detach")
    async def detach() -> Response:
        """Go on without L3."""
        return json_figures(await served.engine.detach_storage())

    @router.get("/explain/{request_id}")
    async def explain(request_id: str) -> Response:
        """Tell where each range of a recent request's prompt came from."""
        return json_figures(await served.engine.explain(request_id))

    return router
