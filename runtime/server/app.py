"""The HTTP interface of one model or several, as an ASGI application."""

import time
from collections.abc import Callable, Mapping, Sequence

from fastapi import FastAPI
from fastapi.routing import APIRoute

import raydix
from raydix.runtime.server.admin import admin_routes
from raydix.runtime.server.anthropic import anthropic_routes
from raydix.runtime.server.cache import cache_routes
from raydix.runtime.server.chat import chat_routes
from raydix.runtime.server.completions import completion_routes
from raydix.runtime.server.cross_origin import allow_origins
from raydix.runtime.server.engine import ServedEngine
from raydix.runtime.server.errors import install_error_handlers
from raydix.runtime.server.http_metrics import CountRequests, HttpMetrics, metrics_routes
from raydix.runtime.server.key_check import KeyCheck
from raydix.runtime.server.keys import KeyJudge
from raydix.runtime.server.responses import response_routes
from raydix.runtime.server.routing_metrics import RoutingCollector
from raydix.runtime.server.served_models import ServedModels
from raydix.runtime.server.sessions import session_routes
from raydix.runtime.server.status import status_routes
from raydix.runtime.server.tokens import token_routes


def build_app(
    engines: Mapping[str, ServedEngine],
    keys: KeyJudge | None,
    wall_clock: Callable[[], float] = time.time,
    replica: int = 0,
    origins: Sequence[str] = (),
) -> FastAPI:
    """The application; whoever listens beyond loopback must give keys.

    engines: those of each model, by what clients call it. keys: None leaves all routes open but
    the admin's. replica: which of those that serve the engines it is. origins: of the web pages
    whose scripts may ask.
    """
    models = ServedModels(engines, wall_clock)
    metrics = HttpMetrics(replica)
    metrics.registry.register(RoutingCollector(tuple(engines.values()), replica))
    app = FastAPI(
        title="Raydix",
        version=raydix.__version__,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        # It has metrics of its own; whether FastAPI's are wanted would be asked at each request.
        telemetry={"tracing": False, "metrics": False, "logs": False},
    )

    of_model = (completion_routes, chat_routes, response_routes, anthropic_routes, token_routes)
    others = (session_routes, cache_routes, status_routes, admin_routes)
    routers = [routes(models) for routes in (*of_model, *others)]
    for router in (*routers, metrics_routes(models, metrics)):
        # As they are: `include_router` would look for each request's route in one after the other.
        app.router.routes.extend(router.routes)
        metrics.expect(route.path for route in router.routes if isinstance(route, APIRoute))
    install_error_handlers(app)

    # The last one added sees a request first.
    app.add_middleware(KeyCheck, keys=keys)
    allow_origins(app, origins)
    app.add_middleware(CountRequests, metrics=metrics)
    return app
