"""Raydix: asynchronous LLM serving on Ray actors, with three tiers of cached prefixes.

Importing the package is cheap: each public name loads its module on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from raydix.version import VERSION

if TYPE_CHECKING:
    from raydix.errors import (
        AccountingError,
        BadParameter,
        BadRequest,
        BatchFailed,
        CalledOff,
        Cancelled,
        CheckpointError,
        ConfigError,
        DeadlineExceeded,
        EngineAsleep,
        EngineDead,
        EngineStopped,
        ModelFailed,
        Overloaded,
        PromptTooLong,
        RaydixError,
        UnknownRequest,
    )
    from raydix.runtime.api.client import AsyncLLM
    from raydix.runtime.api.llm import LLM
    from raydix.runtime.api.outputs import CompletionOutput, RequestOutput
    from raydix.runtime.api.sampling_params import SamplingParams
    from raydix.runtime.api.service import AsyncService
    from raydix.runtime.api.structured_outputs import StructuredOutputs

__version__ = VERSION

__all__ = [
    "LLM",
    "AccountingError",
    "AsyncLLM",
    "AsyncService",
    "BadParameter",
    "BadRequest",
    "BatchFailed",
    "CalledOff",
    "Cancelled",
    "CheckpointError",
    "CompletionOutput",
    "ConfigError",
    "DeadlineExceeded",
    "EngineAsleep",
    "EngineDead",
    "EngineStopped",
    "ModelFailed",
    "Overloaded",
    "PromptTooLong",
    "RaydixError",
    "RequestOutput",
    "SamplingParams",
    "StructuredOutputs",
    "UnknownRequest",
]

_MODULES = {
    "LLM": "raydix.runtime.api.llm",
    "AsyncLLM": "raydix.runtime.api.client",
    "AsyncService": "raydix.runtime.api.service",
    "CompletionOutput": "raydix.runtime.api.outputs",
    "RequestOutput": "raydix.runtime.api.outputs",
    "SamplingParams": "raydix.runtime.api.sampling_params",
    "StructuredOutputs": "raydix.runtime.api.structured_outputs",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'raydix' has no attribute {name!r}")
    value = getattr(import_module(_MODULES.get(name, "raydix.errors")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
