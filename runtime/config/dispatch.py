"""What `experts.dispatch` may be: a backend of Raydix's own, or the name of an installed plugin."""

from typing import Annotated

from pydantic import BeforeValidator
from pydantic_core import PydanticCustomError

from raydix.moe.dispatch.entry_points import installed_plugins
from raydix.runtime.config.policies import DispatchBackend

_OWN = {backend.value: backend for backend in DispatchBackend}


def _read(value: object) -> object:
    """The member of `DispatchBackend` that text names, and the name itself of a plugin."""
    if not isinstance(value, str):
        return value
    if value in _OWN:
        return _OWN[value]

    plugins = installed_plugins()
    if value not in plugins:
        raise PydanticCustomError(
            "dispatch",
            "expected {own}, or the name of an installed plugin ({plugins})",
            {
                "own": ", ".join(map(repr, _OWN)),
                "plugins": ", ".join(plugins) or "there is none",
            },
        )
    return value


DispatchName = Annotated[DispatchBackend | str, BeforeValidator(_read)]
