"""`/health`, `/ready` and `/v1/models`: what this server is."""

from fastapi import APIRouter
from fastapi.responses import JSONResponse, Response

from raydix.errors import EngineAsleep
from raydix.runtime.api.model_limits import ModelLimits
from raydix.runtime.scheduler.phase import Phase
from raydix.runtime.server.answers import json_answer
from raydix.runtime.server.served import REFUSALS, Served
from raydix.runtime.server.served_models import ServedModels
from raydix.runtime.server.wire.models import Model, Models


def status_routes(models: ServedModels) -> APIRouter:
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
        """One model's engines at least take requests; 503 if none do, or all sleep."""
        limits = await models.ask_all(_limits_awake)
        there = [name for name, each in limits.items() if each is not None]
        return JSONResponse({"status": "ready", "models": there})

    @router.get("/v1/models", response_model=Models, responses=REFUSALS)
    async def list_models() -> Response:
        """All models that are served, those whose engines are away among them."""
        limits = await models.ask_all(_limits)
        return json_answer(
            Models(data=[_model(each, limits[each.model_name]) for each in models.all])
        )

    @router.get("/v1/models/{model:path}", response_model=Model, responses=REFUSALS)
    async def retrieve_model(model: str) -> Response:
        """Describe a served model, by its name."""
        served = models.of(model)
        return json_answer(_model(served, await _limits(served)))

    return router


async def _limits(served: Served) -> ModelLimits:
    return await served.engine.limits()


async def _limits_awake(served: Served) -> ModelLimits:
    """Raises EngineAsleep if all engines sleep, or are on their way into sleep or out of it."""
    limits = await _limits(served)
    phases = await served.engine.phase_by_engine()
    known = {phase for phase in phases.values() if phase is not None}
    if known and Phase.AWAKE.value not in known:
        told = ", ".join(sorted(known))
        raise EngineAsleep(
            f"No engine of {served.model_name} is awake ({told}). Wake it with raydix wake, or "
            "POST /admin/wake."
        )
    return limits


def _model(served: Served, limits: ModelLimits | None) -> Model:
    return Model(
        id=served.model_name,
        created=served.started_at,
        max_model_len=None if limits is None else limits.max_model_len,
    )
