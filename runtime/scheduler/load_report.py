"""What is reported of a replica's load, and when that is worth telling. Pure."""

from raydix.runtime.messages.routing import NodeReport

INTERVAL_S = 1.0
"""Seconds after which a report is made whatever has changed: a client notices silence."""
LEAST_S = 0.05
"""Seconds between two messages to one client, once it has been told all that there was."""
_LEAST_CHANGE_S = 0.01
_CHANGE = 0.1
"""The part of a time by which it may differ from what a client believes; no less than 10 ms of what
is queued.
"""
_PROMPT_TOKENS = 1024
"""The tokens of the prompt by which rates are compared."""


def is_worth_telling(told: NodeReport, report: NodeReport, age_s: float) -> bool:
    """Whether a client that was told `told` so long ago is to hear a report.

    It believes that what is queued is worked off as time passes, and that rates stay.
    """
    if age_s >= INTERVAL_S or _what_is_possible(report) != _what_is_possible(told):
        return True
    for told_s, wait_s in (
        (told.busy_s, report.busy_s),
        (told.slot_wait_s(), report.slot_wait_s()),
    ):
        believed_s = max(0.0, told_s - age_s)
        if abs(wait_s - believed_s) > max(_LEAST_CHANGE_S, _CHANGE * believed_s):
            return True
    if abs(report.num_decoding - told.num_decoding) > max(1.0, _CHANGE * told.num_decoding):
        return True
    num_pages = _PROMPT_TOKENS / report.page_size
    pairs = [
        (told.prefill.predict_s(_PROMPT_TOKENS), report.prefill.predict_s(_PROMPT_TOKENS)),
        (told.load.predict_s(num_pages), report.load.predict_s(num_pages)),
    ]
    if told.pull is not None and report.pull is not None:
        pairs.append((told.pull.predict_s(num_pages), report.pull.predict_s(num_pages)))
    return any(abs(new_s - old_s) > _CHANGE * old_s for old_s, new_s in pairs)


def _what_is_possible(report: NodeReport) -> tuple[object, ...]:
    """What is done with a replica or is not, such as to hand over by an L2 that it shares."""
    return report.is_full, report.is_asleep, report.l2, report.pull is None
