from raydix.runtime.actors.steps_ahead import StepsAhead


def test_one_step_is_under_way_when_the_next_is_enqueued_while_the_host_is_in_time() -> None:
    ahead = StepsAhead()

    for _ in range(1000):
        ahead.note_wait(0.002, 0.0025)

    assert ahead.num_steps == 1


def test_more_steps_are_enqueued_ahead_while_results_are_looked_at_late_but_no_more_than_four() -> (
    None
):
    ahead = StepsAhead()

    counts = []
    for _ in range(6):
        ahead.note_wait(0.0, 0.0025)
        counts.append(ahead.num_steps)

    assert counts == [2, 3, 4, 4, 4, 4]


def test_a_host_that_is_quick_again_goes_back_to_one_step() -> None:
    ahead = StepsAhead()
    for _ in range(4):
        ahead.note_wait(0.0, 0.0025)

    for _ in range(255):
        ahead.note_wait(0.002, 0.0025)
    assert ahead.num_steps == 4
    for _ in range(1 + 2 * 256):
        ahead.note_wait(0.002, 0.0025)

    assert ahead.num_steps == 1
