"""What the event that is handled asks of the shell."""

from raydix.runtime.scheduler.events import Effect


class Outbox:
    """Owns: what is to be sent, in order, once the event is handled."""

    def __init__(self) -> None:
        self._effects: list[Effect] = []

    def emit(self, effect: Effect) -> None:
        """Add an effect, for the shell to carry out after those before."""
        self._effects.append(effect)

    def take(self) -> list[Effect]:
        """The effects of the event that was handled."""
        effects, self._effects = self._effects, []
        return effects
