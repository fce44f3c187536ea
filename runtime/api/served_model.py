"""Which model the engines of a handle serve, and which of them are left out for another one."""

from collections.abc import Mapping

from raydix.errors import EngineDead
from raydix.runtime.actors.bootstrap.engine_handle import EngineHandle
from raydix.runtime.api.model_limits import ModelLimits


class OtherModel(EngineDead):
    """The engine that has the name now does not serve what the others do."""


class ServedModel:
    """Owns: the model that all engines of a handle are to serve, once it is decided."""

    def __init__(self) -> None:
        self._decided: tuple[str, EngineHandle] | None = None

    @property
    def is_decided(self) -> bool:
        """Whether an engine has answered so far."""
        return self._decided is not None

    def decide(self, found: Mapping[str, EngineHandle]) -> None:
        """Let it be that of the first of these, which come in the order in which they are named.

        Once: who comes later is measured by it.
        """
        if self._decided is None:
            self._decided = next(iter(found.items()))

    def require(self, name: str, handle: EngineHandle) -> None:
        """Raise OtherModel if this engine serves another model than what was decided."""
        assert self._decided is not None, "an engine has answered"
        by, first = self._decided
        differences = ModelLimits.of(first.facts).differences(ModelLimits.of(handle.facts))
        if differences:
            raise OtherModel(
                f"it serves {handle.model_path}, which differs from what {by} serves, "
                f"{first.model_path}, in {', '.join(differences)}"
            )
