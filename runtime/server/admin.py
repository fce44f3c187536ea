"""The admin's routes: look into the cache, empty it, change its storage; sleep and wake."""

from fastapi import APIRouter, Request
from fastapi.responses import Response

from raydix.errors import BadParameter
from raydix.runtime.config.paths import require_absolute_l3
from raydix.runtime.server.answers import json_figures
from raydix.runtime.server.json_route import JsonRoute
from raydix.runtime.server.served import REFUSALS
from raydix.runtime.server.served_models import ServedModels
from raydix.runtime.server.wire.admin import (
    AttachRequest,
    FlushRequest,
    SleepRequest,
    WakeRequest,
)


def admin_routes(models: ServedModels) -> APIRouter:
    """The routes, all below `/admin/`: of several models each concerns the one that it names."""
    router = APIRouter(prefix="/admin", responses=REFUSALS, route_class=JsonRoute)

    @router.get("/cache/stats")
    async def stats(model: str | None = None) -> Response:
        """Figures of every actor."""
        return json_figures(await models.of(model).engine.stats())

    @router.post("/cache/flush")
    async def flush(body: FlushRequest, request: Request) -> Response:
        """Drop cached pages that no request uses; tells what was dropped."""
        return json_figures(await models.of(_named(body, request)).engine.flush(body.l3))

    @router.post("/cache/attach")
    async def attach(body: AttachRequest, request: Request) -> Response:
        """Use another L3 backend from now on; paths are absolute, of the engine's host."""
        require_absolute_l3(body.l3)
        engine = models.of(_named(body, request)).engine
        return json_figures(await engine.attach_storage(body.l3))

    @router.post("/cache/detach")
    async def detach(model: str | None = None) -> Response:
        """Go on without L3."""
        return json_figures(await models.of(model).engine.detach_storage())

    @router.get("/cache/explain/{request_id}")
    async def explain(request_id: str, model: str | None = None) -> Response:
        """Tell where each range of a recent request's prompt came from."""
        return json_figures(await models.of(model).engine.explain(request_id))

    @router.post("/sleep")
    async def sleep(body: SleepRequest, request: Request) -> Response:
        """Give the GPUs' memory back, once requests have ended or pause; tells how much."""
        return json_figures(await models.of(_named(body, request)).engine.sleep(body.weights))

    @router.post("/wake")
    async def wake(body: WakeRequest, request: Request) -> Response:
        """Take the GPUs' memory again, and go on with requests."""
        return json_figures(await models.of(_named(body, request)).engine.wake())

    @router.get("/phase")
    async def phase(model: str | None = None) -> Response:
        """Whether each engine is awake, by its name; null where nobody knows."""
        return json_figures(await models.of(model).engine.phase_by_engine())

    return router


def _named(
    body: FlushRequest | SleepRequest | WakeRequest | AttachRequest, request: Request
) -> str | None:
    """The model that a body names, or a query as of routes without one.

    Raises BadParameter if both name one, and not the same.
    """
    asked = request.query_params.get("model")
    if body.model is None or asked in (None, body.model):
        return asked if body.model is None else body.model
    raise BadParameter("model", f"is {body.model!r} in the body and {asked!r} behind the path.")
