"""How far apart the places are at which a long chain can be taken up. Pure functions.

`raydix.runtime.cache.checkpoints` says what is kept there.
"""

from raydix.runtime.config.kv_layout import KvLayout

_WINDOWS_PER_CHECKPOINT = 8
"""Regular checkpoints are this many windows apart at least: one window in eight is cheap."""
PLACES_TO_RETURN = 3
"""The places that a run notes beside the regular ones: see `places_to_return`."""
_STATE_ONLY_TOKENS = 1024
"""The tokens from one state to the next where no other group says how much a token weighs."""


def checkpoint_distance(layout: KvLayout) -> int | None:
    """Pages from one regular checkpoint to the next; None if all groups look back at everything.

    The heavier a token is in WINDOW groups, compared with the others, the fewer there are. States
    weigh as much as what the tokens between two of them leave in the other groups.
    """
    return _distance(layout, spans_per_state=1)


def fetch_distance(layout: KvLayout) -> int | None:
    """Pages from one checkpoint that a long chain's way to L2 takes in to the next; None as above.

    Those before the last one are read in case that not all of it comes, so they are to be cheap:
    that holds of every regular window, and of one regular state in eight.
    """
    return _distance(layout, spans_per_state=_WINDOWS_PER_CHECKPOINT)


def _distance(layout: KvLayout, spans_per_state: int) -> int | None:
    """`spans_per_state`: how many times a state's bytes other groups take between two states."""
    windows = [group for group in layout.groups if group.window is not None]
    if not windows and not layout.has_states:
        return None

    num_tokens = 1
    num_window = sum(group.token_elements for group in windows)
    num_other = sum(group.token_elements for group in layout.groups) - num_window
    if windows:
        widest = max(group.window or 0 for group in windows)
        num_tokens = _WINDOWS_PER_CHECKPOINT * widest
        if num_window > num_other > 0:
            num_tokens = -(-num_tokens * num_window // num_other)
    if layout.has_states:
        token_bytes = layout.token_bytes
        num_between = -(-layout.state_bytes // token_bytes) if token_bytes else _STATE_ONLY_TOKENS
        num_tokens = max(num_tokens, spans_per_state * num_between)
    return -(-num_tokens // layout.page_size)


def most_states(layout: KvLayout, num_pages: int) -> int:
    """The most states that a request leaves while it computes `num_pages` pages of a chain.

    They are those before regular checkpoints, before the places to return to, and the last one.
    """
    distance = checkpoint_distance(layout)
    assert distance is not None, "there are states"
    return min(num_pages, num_pages // distance + 1 + PLACES_TO_RETURN + 1)
