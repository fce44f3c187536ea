"""Checks of invariants between two spells of work."""

from raydix.runtime.actors.idle_check import IdleCheck


class CountedCore:
    """A core that counts its checks."""

    def __init__(self) -> None:
        self.is_idle = True
        self.num_checks = 0

    def check(self) -> None:
        self.num_checks += 1


def test_a_core_is_checked_once_after_each_spell_of_work_and_not_at_once() -> None:
    core, check = CountedCore(), IdleCheck()
    assert check.advance(core, 0.0) is None

    for began_s in (1.0, 2.0):
        core.is_idle = False
        assert check.advance(core, began_s) is None
        core.is_idle, checks_before = True, core.num_checks
        due_s = check.advance(core, began_s + 0.1)
        assert due_s is not None
        assert due_s > began_s + 0.1
        assert core.num_checks == checks_before
        assert check.advance(core, due_s) is None
        assert check.advance(core, due_s + 0.5) is None
        assert core.num_checks == checks_before + 1


def test_work_that_goes_on_puts_the_check_off() -> None:
    core, check = CountedCore(), IdleCheck()
    core.is_idle = False
    check.advance(core, 0.0)
    core.is_idle = True
    due_s = check.advance(core, 1.0)
    assert due_s is not None

    core.is_idle = False
    check.advance(core, due_s)
    core.is_idle = True
    later_s = check.advance(core, due_s + 1.0)
    assert later_s is not None
    assert later_s > due_s + 1.0
    assert core.num_checks == 0
