"""How many steps of a plan that stands are enqueued ahead: one, or more on a slow host."""

_LEAST, _MOST = 1, 4
"""The bounds of the steps that are under way when one more is enqueued: whatever comes waits for
all of them, and the device for none.
"""
_AT_ONCE_PART = 0.25
"""A wait for a smaller part of a step's time was for one that had ended already, or nearly."""
_STEPS_IN_TIME = 256
"""The steps in a row that were waited for after which one step less is enqueued ahead."""


class StepsAhead:
    """Owns: how many steps are to be under way before one more is enqueued.

    If the next step, too, has ended when its result is looked at, the device has gone through what
    was enqueued in the time that the host took: one step more is enqueued from then on. Whatever
    the number, each further step shows whether it is too low; from time to time a lower one is
    tried.
    """

    def __init__(self) -> None:
        self.num_steps = _LEAST
        self._num_in_time = 0

    def note_wait(self, waited_s: float, step_s: float) -> None:
        """Note for how long a step was waited for when its result was looked at, and its time."""
        if waited_s <= _AT_ONCE_PART * step_s:
            self._num_in_time = 0
            self.num_steps = min(self.num_steps + 1, _MOST)
            return
        self._num_in_time += 1
        if self._num_in_time >= _STEPS_IN_TIME:
            self._num_in_time = 0
            self.num_steps = max(self.num_steps - 1, _LEAST)
