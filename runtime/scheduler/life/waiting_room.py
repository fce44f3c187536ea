"""How many may wait: all together, and of one tenant. Pure."""

from collections.abc import Callable

from raydix.runtime.messages.client import FailureKind, RequestFailure

_RETRY_AFTER_S = 1.0


def refuse_for_room(
    num_waiting: int,
    most: int,
    num_of_tenant: Callable[[], int] | None,
    *,
    what: str,
    bound: str,
) -> RequestFailure | None:
    """Why one more may not wait; None if it may.

    A tenant may have as many waiting as there are places left: whoever asks for however much, the
    next tenant finds room. So it is on each of several engines, and so of the whole service.

    num_of_tenant: counts how many of the asking tenant wait; it is asked only if that can matter.
    None: who asks is no tenant. what, bound: what waits, and what says how many may, for people.
    """
    num_left = most - num_waiting
    if num_left <= 0:
        return _overloaded(f"{num_waiting} {what} wait; {bound} is {most}.")
    # No tenant has more waiting than all have together.
    if num_of_tenant is None or num_waiting < num_left or (own := num_of_tenant()) < num_left:
        return None
    return _overloaded(
        f"{own} {what} of this tenant wait, and {num_left} more may wait by {bound} of {most}; "
        "a tenant may have as many waiting as there are places left."
    )


def _overloaded(text: str) -> RequestFailure:
    return RequestFailure(
        kind=FailureKind.OVERLOADED,
        message=f"{text} Try again in {_RETRY_AFTER_S:g} s.",
        retry_after_s=_RETRY_AFTER_S,
    )
