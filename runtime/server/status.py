"""`/health`, `/ready` and `/v1/models`: what this server is."""

from fastapi import APIRouter
from fastapi.responses import JSONResponse, Response

from raydix.runtime.server.answers import json_answer
from raydix.runtime.server.served import REFUSALS, Served
from raydix.runtime.server.wire.models import Model, Models


def status_routes(served: Served) -> APIRouter:
    """The routes of the server's state."""
    router = APIRouter()

    @router.head("/health", include_in_schema=False)
    @router.get("/health")
    async def health() -> Response:
        """This process answers."""
        return JSONResponse({"status": "ok"})

    @router.head("/ready", include_in_schema=False)
    @router.get("/ready", responses=REFUSALS)
    async def ready() -> Response:
        """The engine takes requests; 503 if it does not."""
        await served.engine.limits()
        return JSONResponse({"status": "ready", "model": served.model_name})

    @router.get("/v1/models", response_model=Models, responses=REFUSALS)
    async def list_models() -> Response:
        """The one model that is served."""
        return json_answer(Models(data=[await _model(served)]))

    @router.get("/v1/models/{model:path}", response_model=Model, responses=REFUSALS)
    async def retrieve_model(model: str) -> Response:
        """Describe the served model, by its name."""
        served.check_model(model)
        return json_answer(await _model(served))

    return router


async def _model(served: Served) -> Model:
    limits = await served.engine.limits()
    return Model(
        id=served.model_name, created=served.started_at, max_model_len=limits.max_model_len
    )
