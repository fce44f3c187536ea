"""Which GPU pages the plans and copies in flight name, worked out from the plans alone."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from raydix.ids import TransferId
from raydix.runtime.messages.plan import PageCopies, StepPlan
from raydix.runtime.scheduler.ranks.lane import Lane

Page = tuple[int, int]
"""KV group and page id."""


class PageInUse(AssertionError):
    """A page was handed out while a step or copy that was sent may still read or write it."""


@dataclass(slots=True, eq=False)
class _Run:
    """One request in a slot, as the device knows it. Per KV group, its page ids by place."""

    tables: list[dict[int, int]]


@dataclass(slots=True)
class _Named:
    """What the rows of one plan name, and whose they are."""

    reads: dict[Page, list[_Run]] = field(default_factory=dict)
    writes: dict[Page, _Run] = field(default_factory=dict)

    def is_of_others(self, page: Page, run: _Run) -> bool:
        """A row of another run reads or writes the page."""
        users = (*self.reads.get(page, ()), self.writes.get(page, run))
        return any(user is not run for user in users)


class NamedPages:
    """Owns: what the plans that one lane was sent name, until all its ranks have done them.

    A page of these is never free; nobody else writes it, and no load fills it.
    """

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._start_over()

    def _start_over(self) -> None:
        self._in_flight = self._lane.in_flight
        self._runs: dict[int, _Run] = {}
        """The runs, by slot."""
        self._steps: dict[int, _Named] = {}
        self._loads: dict[TransferId, set[Page]] = {}
        self._backups: dict[TransferId, set[Page]] = {}

    def forget_done(self) -> None:
        """What all ranks have acknowledged names nothing any more, nor do ranks that are lost."""
        if self._lane.in_flight is not self._in_flight:
            self._start_over()
        for known, under_way in (
            (self._steps, self._in_flight.steps),
            (self._loads, self._in_flight.transfers),
            (self._backups, self._in_flight.transfers),
        ):
            for number in [number for number in known if number not in under_way]:
                del known[number]

    def send(self, plan: StepPlan) -> None:
        """A plan was sent: what it names is in use, and what it writes is in nobody else's."""
        self._apply_tables(plan)
        loads, backups = _pages_of(plan.loads), _pages_of(plan.backups)
        self._check_loads(loads)
        self._loads |= loads
        self._backups |= backups
        self._steps[plan.step] = self._take_rows(plan)

        written = {page for named in self._steps.values() for page in named.writes}
        for pages in backups.values():
            _require_apart(pages, written, f"step {plan.step} backs up what rows write")

    def _apply_tables(self, plan: StepPlan) -> None:
        for slot in plan.removed_slots.tolist():
            del self._runs[slot]
        for added in plan.added:
            self._runs[added.slot] = _Run([{} for _ in self._lane.settings.num_pages])
        for changes in plan.tables:
            ids = iter(changes.page_ids.tolist())
            columns = (changes.slots.tolist(), changes.starts.tolist(), changes.counts.tolist())
            for slot, first, count in zip(*columns, strict=True):
                table = self._runs[slot].tables[changes.group]
                table.update({first + index: next(ids) for index in range(count)})

    def _check_loads(self, loads: dict[TransferId, set[Page]]) -> None:
        """Loads overtake the steps before them, and run beside other copies."""
        in_use = set(self._copied())
        for named in self._steps.values():
            in_use |= named.reads.keys() | named.writes.keys()
        for number, pages in loads.items():
            _require_apart(pages, in_use, f"load {number} fills pages that are in use")
            in_use |= pages

    def _take_rows(self, plan: StepPlan) -> _Named:
        named, copied = _Named(), set(self._copied())
        columns = (plan.row_slots, plan.row_starts, plan.row_num_tokens, plan.row_write_starts)
        columns += (plan.row_loads,)
        for slot, start, count, write_start, load in zip(
            *(column.tolist() for column in columns), strict=True
        ):
            run, end, what = self._runs[slot], start + count, f"step {plan.step}, slot {slot}"
            reads = set(self._pages_of_tokens(run, start, end, looks_back=True))
            writes = set(self._pages_of_tokens(run, write_start, end, looks_back=False))

            awaited = self._loads.get(TransferId(load), set())
            others = {page for pages in self._loads.values() for page in pages} - awaited
            _require_apart(reads, others, f"{what} reads what is still loaded")
            _require_apart(writes, copied, f"{what} writes what is copied")
            for earlier in (*self._steps.values(), named):
                taken = {page for page in writes if earlier.is_of_others(page, run)}
                _require_apart(writes, taken, f"{what} writes what another request uses")

            for page in reads:
                named.reads.setdefault(page, []).append(run)
            named.writes.update(dict.fromkeys(writes, run))
        return named

    def _pages_of_tokens(
        self, run: _Run, start: int, end: int, *, looks_back: bool
    ) -> Iterator[Page]:
        """Pages of the tokens [start, end), and of what these look back on."""
        size = self._lane.settings.page_size
        for group, spec in enumerate(self._lane.settings.layout.groups):
            first = spec.first_seen(start) if looks_back else start
            for place in range(first // size, -(-end // size)) if first < end else ():
                page_id = run.tables[group].get(place, 0)
                if page_id:
                    yield group, page_id

    def _copied(self) -> Iterator[Page]:
        for copies in (self._loads, self._backups):
            for pages in copies.values():
                yield from pages

    def check(self) -> None:
        """Raises PageInUse if a page is free that something in flight names."""
        in_use = set(self._copied())
        for named in self._steps.values():
            in_use |= named.reads.keys() | named.writes.keys()
        pools = self._lane.l1.pools
        for group in range(pools.num_groups):
            pool = pools.group(group)
            free = {(group, page_id) for page_id in pool._free[: pool.num_free].tolist()}
            _require_apart(free, in_use, f"lane {self._lane.index} has free pages that are in use")


def _pages_of(copies: PageCopies) -> dict[TransferId, set[Page]]:
    pages: dict[TransferId, set[Page]] = {}
    columns = (copies.transfer_ids, copies.groups, copies.page_ids)
    for number, group, page_id in zip(*(column.tolist() for column in columns), strict=True):
        pages.setdefault(TransferId(number), set()).add((group, page_id))
    return pages


def _require_apart(pages: Iterable[Page], others: Iterable[Page], text: str) -> None:
    shared = set(pages) & set(others)
    if shared:
        raise PageInUse(f"{text}: {sorted(shared)}")
