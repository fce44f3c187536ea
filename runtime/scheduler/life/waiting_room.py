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
    num_going_on: int = 0,
) -> RequestFailure | None:
    """Why one more may not wait; None if it may. `has_room` says when, and of what numbers.

    what, bound: what waits, and what says how many may, for people.
    """
    if has_room(num_waiting, most, num_of_tenant, num_going_on):
        return None
    num_left = most - num_waiting + num_going_on
    if num_of_tenant is None or num_left <= 0:
        return _overloaded(f"{num_waiting} {what} wait; {bound} is {most}.")
    return _overloaded(
        f"{num_of_tenant()} {what} of this tenant wait, and {num_left} more may wait by {bound} of "
        f"{most}; a tenant may have as many waiting as there are places left."
    )


def has_room(
    num_waiting: int, most: int, num_of_tenant: Callable[[], int] | None, num_going_on: int = 0
) -> bool:
    """Whether one more may wait.

    A tenant may have as many waiting as there are places left: whoever asks for however much, the
    next tenant finds room. So it is on each of several engines, and so of the whole service.
    What goes on was taken in elsewhere and is never refused. It counts as its tenant's, so that who
    has much of it gets no more in, and it takes no place from any other tenant.

    num_of_tenant: counts how many of the asking tenant wait; it is asked only if that can matter.
    None: who asks is no tenant. num_going_on: how many of those that wait go on.
    """
    num_left = most - num_waiting
    if num_of_tenant is None:
        return num_left > 0
    # No tenant has more waiting than all have together.
    if num_waiting < num_left:
        return True
    num_left += num_going_on
    return num_left > 0 and num_of_tenant() < num_left


def _overloaded(text: str) -> RequestFailure:
    return RequestFailure(
        kind=FailureKind.OVERLOADED,
        message=f"{text} Try again in {_RETRY_AFTER_S:g} s.",
        retry_after_s=_RETRY_AFTER_S,
    )
