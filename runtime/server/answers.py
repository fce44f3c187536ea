"""JSON answers and how they are written."""

import json
from collections.abc import Mapping
from typing import Any

from fastapi.responses import Response
from pydantic import BaseModel


def json_answer(
    value: BaseModel, headers: Mapping[str, str] | None = None, status: int = 200
) -> Response:
    """An answer by its model, written once: FastAPI would check and convert it again."""
    return Response(value.model_dump_json(), status, headers, "application/json")


def json_figures(values: dict[str, Any]) -> Response:
    """Figures of the engine as they are; what JSON lacks is told as text."""
    return Response(json.dumps(values, default=str), media_type="application/json")
