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
    num_going_on: Callable[[], int] = lambda: 0,
) -> RequestFailure | None:
    """Why one more may not wait; None if it may.

    A tenant may have as many waiting as there are places left: whoever asks for however much, the
    next tenant finds room. So it is on each of several engines, and so of the whole service.
    What goes on was taken in elsewhere and is never refused. It counts as its tenant's, so that who
    has much of it gets no more in, and it takes no place from any other tenant.

    num_of_tenant: counts how many of the asking tenant wait; it is asked only if that can matter.
    None: who asks is no tenant. num_going_on: counts how many of those that wait go on. what,
    bound: what waits, and what says how many may, for people.
    """
    num_left = most - num_waiting
    # No tenant has more waiting than all have together.
    if num_waiting < num_left or (num_of_tenant is None and num_left > 0):
        return None
    if num_of_tenant is not None:
        num_left += num_going_on()
    if num_left <= 0 or num_of_tenant is None:
        return _overloaded(f"{num_waiting} {what} wait; {bound} is {most}.")
    if (own := num_of_tenant()) < num_left:
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
