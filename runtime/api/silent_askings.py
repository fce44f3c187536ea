"""Which requests leave an engine that sleeps: another one would have gone on with them by now."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from raydix.ids import AskingId
from raydix.runtime.api.open_requests import OpenRequest

LEAST_S = 1.0
"""The least time for which a request is left where it is: engines tell each second that they sleep,
and several that are woken together do not come at once.
"""
MAX_PREDICTIONS = 32
"""The most requests of which it is predicted at a time what they would take elsewhere: of a long
prompt that takes a millisecond, and nothing else is heard meanwhile.
"""


@dataclass(frozen=True, slots=True)
class _Silence:
    num_tokens: int
    since_s: float
    elsewhere_s: float | None
    """The time to its next token elsewhere, as it was predicted; None: not yet."""


class SilentAskings:
    """Owns: since when each asking at an engine that sleeps could have gone on at another one.

    How long the engine sleeps nobody knows. So a request waits there for as long as going elsewhere
    takes, and then goes: at worst it is twice as late as by whichever would have been better.
    """

    def __init__(self) -> None:
        self._silences: dict[AskingId, _Silence] = {}

    def due(
        self,
        requests: Iterable[OpenRequest],
        predict_s: Callable[[OpenRequest], float],
        now_s: float,
    ) -> list[OpenRequest]:
        """Choose the requests that are to leave now.

        requests: all that are open at engines that sleep, while another engine takes requests.
        predict_s: the time to a request's next token there. Tokens may still come until an engine
        has drained: each of them lets its request stay for as long again.
        """
        former, self._silences = self._silences, {}
        leaving = []
        num_predictions = 0
        for each in requests:
            silence = _heard(each.num_tokens, former.get(each.asking), now_s)
            silent_s = now_s - silence.since_s
            is_due = silence.elsewhere_s is None and silent_s >= LEAST_S
            if is_due and num_predictions < MAX_PREDICTIONS:
                num_predictions += 1
                silence = replace(silence, elsewhere_s=predict_s(each))

            if silence.elsewhere_s is not None and silent_s >= silence.elsewhere_s:
                leaving.append(each)
            else:
                self._silences[each.asking] = silence
        return leaving


def _heard(num_tokens: int, former: _Silence | None, now_s: float) -> _Silence:
    """The silence behind so many tokens: the former one, unless more have come since."""
    if former is not None and former.num_tokens == num_tokens:
        return former
    return _Silence(num_tokens, now_s, None)
