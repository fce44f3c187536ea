"""Which pins a handle on several engines shows."""

from raydix.runtime.api.pins import pins_of


def host(*pin_ids):
    return {"host": {"l2_pins": [{"pin_id": each, "tenant": None} for each in pin_ids]}}


def test_a_pin_of_an_l2_that_engines_share_is_shown_once():
    shown = pins_of(
        {"left": host("a", "b"), "away": None, "right": host("b", "a"), "far": host("c")}
    )
    assert [each["pin_id"] for each in shown] == ["a", "b", "c"]
