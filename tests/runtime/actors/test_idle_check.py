"""Checks of invariants between two spells of work."""

from raydix.runtime.actors.idle_check import IdleCheck


class CountedCore:
    """A core that counts its checks, each of which takes `check_s`."""

    def __init__(self, check_s: float = 0.0) -> None:
        self.is_idle = True
        self.num_checks = 0
        self.check_s = check_s
        self.clock_s = 0.0

    def check(self) -> None:
        self.num_checks += 1
        self.clock_s += self.check_s

    def work(self, check: IdleCheck, now_s: float) -> float | None:
        """A short spell of it. Returns when to come back."""
        self.is_idle = False
        assert check.advance(self, now_s) is None
        self.is_idle = True
        return check.advance(self, now_s)


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


def test_a_check_that_takes_long_waits_for_a_long_rest() -> None:
    """Whoever comes while it runs waits for it: that is to be rare, also with many pages."""
    core = CountedCore(check_s=0.1)
    check = IdleCheck(lambda: core.clock_s)
    first_due_s = core.work(check, 1.0)
    assert first_due_s is not None
    assert first_due_s < 1.1
    check.advance(core, first_due_s)

    for now_s in (2.0, 3.0, 4.0):
        due_s = core.work(check, now_s)
        assert due_s is not None
        assert due_s - now_s >= 50 * core.check_s - 1e-9
    assert core.num_checks == 1

    core.check_s = 60.0
    check.advance(core, due_s)
    assert core.num_checks == 2
    later_s = core.work(check, 50.0)
    assert later_s is not None
    assert later_s <= 60.0, "the machine may have been busy"

    core.check_s = 0.0
    check.advance(core, later_s)
    assert core.num_checks == 3
    soon_s = core.work(check, 100.0)
    assert soon_s is not None
    assert soon_s < 100.1, "there are few pages again"
