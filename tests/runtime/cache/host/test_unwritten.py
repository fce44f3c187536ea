"""Pages that L3 is to get, compared with plain lists."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from raydix.ids import HostPageId
from raydix.runtime.cache.host.unwritten import Turn, UnwrittenPages

NUM_PAGES = 12
PAGES = st.integers(0, NUM_PAGES - 1).map(HostPageId)
WAITING = (Turn.FIRST, Turn.NEW, Turn.FILL)


class UnwrittenWorld(RuleBasedStateMachine):
    """What is to be written, as a list for each turn."""

    def __init__(self) -> None:
        super().__init__()
        self.unwritten = UnwrittenPages(NUM_PAGES)
        self.lists: dict[Turn, list[HostPageId]] = {turn: [] for turn in Turn}
        self.writing: list[HostPageId] = []
        self.num_lost = 0
        self.now_s = 0.0
        self.retry_at_s: dict[HostPageId, float] = {}

    def known(self) -> set[HostPageId]:
        return {page for pages in self.lists.values() for page in pages} | set(self.writing)

    @rule(page=PAGES, turn=st.sampled_from(WAITING))
    def add(self, page: HostPageId, turn: Turn) -> None:
        is_new = page not in self.known()
        assert self.unwritten.add(page, turn) == is_new
        if is_new:
            self.lists[turn].append(page)

    @rule(page=PAGES)
    def use(self, page: HostPageId) -> None:
        self.unwritten.note_use(page)
        for turn in (Turn.NEW, Turn.FILL):
            if page in self.lists[turn]:
                self.lists[turn].remove(page)
                self.lists[Turn.FIRST].append(page)

    @rule()
    def start(self) -> None:
        waiting = [page for turn in WAITING for page in self.lists[turn]]
        assert self.unwritten.next_page() == next(iter(waiting), None)
        if waiting:
            self.unwritten.start(waiting[0])
            self.writing.append(waiting[0])
            for pages in self.lists.values():
                if waiting[0] in pages:
                    pages.remove(waiting[0])

    @precondition(lambda self: self.writing)
    @rule(how=st.sampled_from(["written", "back", "off"]))
    def end(self, how: str) -> None:
        page = self.writing.pop()
        if how == "written":
            self.unwritten.finish(page)
        elif how == "back":
            self.unwritten.put_back(page)
            self.lists[Turn.FIRST].insert(0, page)
        else:
            self.retry_at_s[page] = self.now_s + 5.0
            self.unwritten.put_off(page, self.retry_at_s[page])
            self.lists[Turn.PUT_OFF].append(page)

    @rule(seconds=st.sampled_from([0.0, 2.0, 6.0]), max_pages=st.integers(1, 3))
    def retry(self, seconds: float, max_pages: int) -> None:
        self.now_s += seconds
        self.unwritten.retry(self.now_s, max_pages)
        due = [page for page in self.lists[Turn.PUT_OFF] if self.retry_at_s[page] <= self.now_s]
        for page in due[:max_pages]:
            self.lists[Turn.PUT_OFF].remove(page)
            self.lists[Turn.NEW].append(page)

    @rule(page=PAGES)
    def drop(self, page: HostPageId) -> None:
        if page not in self.writing:
            self.unwritten.forget(page)
            for pages in self.lists.values():
                if page in pages:
                    pages.remove(page)
                    self.num_lost += 1

    @rule()
    def clear(self) -> None:
        assert self.unwritten.clear() == sum(map(len, self.lists.values()))
        for pages in self.lists.values():
            pages.clear()

    @invariant()
    def they_agree(self) -> None:
        listed = self.unwritten.listed()
        assert listed == {page for pages in self.lists.values() for page in pages}
        assert self.unwritten.writing() == set(self.writing)
        assert all((page in self.unwritten) == (page in self.known()) for page in range(NUM_PAGES))
        assert self.unwritten.num_waiting == sum(len(self.lists[turn]) for turn in WAITING)
        assert self.unwritten.num_put_off == len(self.lists[Turn.PUT_OFF])
        first = next(iter(self.lists[Turn.PUT_OFF]), None)
        expected = None if first is None else self.retry_at_s[first]
        assert self.unwritten.next_retry_s == expected
        assert self.unwritten.take_num_lost() == self.num_lost
        self.num_lost = 0


UnwrittenWorld.TestCase.settings = settings(max_examples=40, stateful_step_count=40)
TestUnwrittenWorld = UnwrittenWorld.TestCase
