"""How a step's prompt tokens are divided: what each prompt gets, and what it gets over time."""

from hypothesis import given, settings
from hypothesis import strategies as st

from raydix.runtime.scheduler.prompt_shares import (
    PromptWork,
    StepRoom,
    may_join,
    most_beside,
    share_out,
)

SIZE = 16
ROOM = StepRoom(
    budget_tokens=2048, shared_tokens=2048, most_tokens=2048, page_size=SIZE, short_fraction=0.25
)


def work(num_tokens: int, *, level: int = 0, priority: int = 0, num_pages: int = 0) -> PromptWork:
    """What is left of a prompt behind so many computed pages."""
    return PromptWork(
        num_planned=num_pages * SIZE, num_tokens=num_tokens, level=level, priority=priority
    )


def test_a_short_prompt_has_a_share_of_the_steps_of_a_long_one_before_it() -> None:
    assert share_out([work(200_000), work(100)], ROOM) == [2048 - 112, 100]


def test_the_shortest_go_first_and_the_last_one_that_fits_gets_a_part() -> None:
    prompts = [work(200_000), work(500), work(100), work(60_000)]
    assert share_out(prompts, ROOM) == [1536, 512 - 112, 100, 0]


def test_a_prompt_that_would_not_end_before_the_long_one_has_no_share_of_its_steps() -> None:
    assert share_out([work(100_000), work(100_000)], ROOM) == [2048, 0]
    assert share_out([work(4000), work(2000)], ROOM) == [2048, 0]


def test_a_better_level_has_the_whole_step_before_a_prompt_in_chunks() -> None:
    running = work(150_000, num_pages=100)
    assert share_out([running, work(50_000, level=-5, priority=-5)], ROOM) == [0, 2048]
    assert share_out([running, work(100, level=-5, priority=-5)], ROOM) == [1936, 100]


def test_a_worse_priority_has_no_share_but_one_that_is_only_younger_has() -> None:
    long = work(200_000, level=3)
    assert share_out([long, work(100, level=4, priority=1)], ROOM) == [2048, 0]
    assert share_out([long, work(100, level=9)], ROOM) == [1936, 100]
    # It has waited for so long that it counts as much.
    assert share_out([long, work(100, level=3, priority=3)], ROOM) == [1936, 100]


def test_a_prompt_that_a_step_can_take_whole_is_not_cut_to_join_others() -> None:
    assert share_out([work(1500), work(1000), work(200)], ROOM) == [1500, 0, 200]


def test_without_a_share_a_long_prompt_goes_on_alone() -> None:
    assert share_out([work(200_000), work(100)], ROOM._replace(short_fraction=0.0)) == [2048, 0]


def test_where_no_prompt_is_cut_the_first_has_a_step_of_its_own_if_it_is_too_long() -> None:
    whole = ROOM._replace(most_tokens=None)
    assert share_out([work(9000), work(100)], whole) == [9000, 0]
    assert share_out([work(100), work(9000), work(300)], whole) == [100, 0, 300]
    assert share_out([work(9000), work(100, level=-1)], whole) == [0, 100]


_prompts = st.lists(
    st.builds(
        work,
        st.integers(2, 20_000),
        level=st.integers(-2, 2),
        priority=st.integers(-2, 2),
        num_pages=st.integers(0, 100),
    ),
    max_size=12,
)
_pages = st.integers(1, 200)


@st.composite
def _rooms(draw: st.DrawFn) -> StepRoom:
    most = draw(_pages)
    budget = draw(st.integers(1, most))
    return StepRoom(
        budget_tokens=budget * SIZE,
        shared_tokens=draw(st.integers(1, budget * SIZE)),
        most_tokens=most * SIZE,
        page_size=SIZE,
        short_fraction=draw(st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.9])),
    )


@given(prompts=_prompts, room=_rooms())
def test_parts_are_whole_pages_within_the_budget_and_some_prompt_has_one(
    prompts: list[PromptWork], room: StepRoom
) -> None:
    parts = share_out(prompts, room)

    assert parts == share_out(prompts, room)
    assert sum(map(room.charged, parts)) <= room.budget_tokens
    assert any(parts) == bool(prompts)
    for prompt, part in zip(prompts, parts, strict=True):
        assert 0 <= part <= prompt.num_tokens
        assert part == prompt.num_tokens or (prompt.num_planned + part) % SIZE == 0


@given(prompts=_prompts, room=_rooms())
def test_a_step_that_cuts_a_prompt_is_full_and_mostly_its_own(
    prompts: list[PromptWork], room: StepRoom
) -> None:
    first = min(range(len(prompts)), key=lambda index: prompts[index].level, default=None)
    if first is None or prompts[first].num_tokens <= room.budget_tokens:
        return
    parts = share_out(prompts, room)
    assert sum(map(room.charged, parts)) == room.budget_tokens
    assert room.charged(parts[first]) >= room.budget_tokens - room.short_tokens()
    assert parts[first] > 0


@given(prompts=_prompts, room=_rooms())
def test_who_is_worse_by_priority_and_level_takes_nothing_from_anybody(
    prompts: list[PromptWork], room: StepRoom
) -> None:
    worst_level = max([prompt.level for prompt in prompts], default=0)
    worst = max([prompt.priority for prompt in prompts], default=0)
    worse = work(50, level=worst_level + 1, priority=worst + 1)
    assert share_out([*prompts, worse], room)[: len(prompts)] == share_out(prompts, room)


def _play(prompts: list[PromptWork], room: StepRoom, *, max_steps: int) -> list[int]:
    """The step in which each prompt ends."""
    ends = [0] * len(prompts)
    for step in range(1, max_steps + 1):
        left = [index for index, prompt in enumerate(prompts) if prompt.num_tokens]
        parts = share_out([prompts[index] for index in left], room)
        for index, part in zip(left, parts, strict=True):
            one = prompts[index]
            prompts[index] = one._replace(
                num_planned=one.num_planned + part, num_tokens=one.num_tokens - part
            )
            if part and not prompts[index].num_tokens:
                ends[index] = step
    return ends


@settings(max_examples=50)
@given(prompts=_prompts, room=_rooms())
def test_all_prompts_end_and_no_step_is_lost(prompts: list[PromptWork], room: StepRoom) -> None:
    room = room._replace(budget_tokens=room.most_tokens or 0, shared_tokens=room.most_tokens or 0)
    num_pages = sum(room.charged(prompt.num_tokens) for prompt in prompts) // SIZE
    # A step may leave room for a part of a prompt that is not cut: it is less than that prompt.
    max_steps = 2 * (num_pages * SIZE // room.budget_tokens + 1)
    ends = _play(list(prompts), room, max_steps=max_steps)
    assert all(ends)


@settings(max_examples=50)
@given(
    long_pages=st.integers(50, 2000),
    fraction=st.sampled_from([0.1, 0.25, 0.5, 0.9]),
    short=st.integers(2, 300),
)
def test_a_long_prompt_ends_however_many_short_ones_come(
    long_pages: int, fraction: float, short: int
) -> None:
    room = ROOM._replace(short_fraction=fraction)
    long, num_steps = work(long_pages * SIZE), 0
    while long.num_tokens:
        part, *_ = share_out([long, *[work(short) for _ in range(64)]], room)
        long = long._replace(num_planned=long.num_planned + part, num_tokens=long.num_tokens - part)
        num_steps += 1
    alone = long_pages * SIZE / room.budget_tokens
    assert num_steps <= alone / (1.0 - fraction) + 2


@given(long=st.integers(2, 10**6), fraction=st.floats(0.01, 0.9))
def test_whoever_may_have_a_share_ends_before_the_long_one(long: int, fraction: float) -> None:
    short = most_beside(long, fraction)
    assert short / fraction <= long / (1.0 - fraction) * (1 + 1e-9)


def test_whoever_is_no_worse_in_priority_or_age_may_join() -> None:
    long = work(1000, level=2, priority=1)
    assert may_join(long, priority=1, level=50)
    assert may_join(long, priority=7, level=2)
    assert not may_join(long, priority=2, level=3)
