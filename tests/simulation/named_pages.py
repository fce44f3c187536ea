"""Which GPU pages the plans and copies in flight name, worked out from the plans alone."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from raydix.ids import TransferId
from raydix.runtime.messages.plan import PageCopies, StepPlan, StepsLeftOut
from raydix.runtime.scheduler import events
from raydix.runtime.scheduler.ranks.lane import Lane
from raydix.runtime.scheduler.ranks.standing_plan import repetition

Page = tuple[int, int]
"""KV group and page id."""


class PageInUse(AssertionError):
    """A page was handed out while a step or copy that was sent may still read or write it."""


@dataclass(slots=True, eq=False)
class _Run:
    """One request in a slot, as the device knows it. Per KV group, its page ids by place."""

    tables: list[dict[int, int]]


@dataclass(slots=True, eq=False)
class _Row:
    """A row of one step: tokens [start, start + count), or so many positions before these."""

    run: _Run
    tables: list[dict[int, int]]
    """The run's tables when its plan was sent."""
    start: int
    count: int
    write_start: int
    num_before: int
    """The repetitions of the run that are sent before and may be left out."""
    is_repetition: bool

    def settle(self, *, is_left_out: bool) -> None:
        """One of those before it is made, or left out."""
        self.num_before -= 1
        self.start -= is_left_out
        self.write_start -= is_left_out


@dataclass(slots=True)
class _Named:
    """What the rows of one step name, and whose they are."""

    rows: list[_Row] = field(default_factory=list)
    reads: dict[Page, list[_Run]] = field(default_factory=dict)
    writes: dict[Page, _Run] = field(default_factory=dict)
    is_out_of_date: bool = False

    def add(self, row: _Row, reads: set[Page], writes: set[Page]) -> None:
        """The step has one more row, which may name these pages."""
        self.rows.append(row)
        for page in reads:
            self.reads.setdefault(page, []).append(row.run)
        self.writes.update(dict.fromkeys(writes, row.run))

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

    def forget_done(self, event: events.Event) -> None:
        """What all ranks have acknowledged names nothing any more, nor do ranks that are lost."""
        if self._lane.in_flight is not self._in_flight:
            self._start_over()
        left_out = event.message if isinstance(event, events.RankMessage) else None
        is_left_out = isinstance(left_out, StepsLeftOut)
        for number in [number for number in self._steps if number not in self._in_flight.steps]:
            self._settle(self._steps.pop(number), is_left_out=is_left_out)
        for known, under_way in (
            (self._loads, self._in_flight.transfers),
            (self._backups, self._in_flight.transfers),
        ):
            for number in [number for number in known if number not in under_way]:
                del known[number]

    def _settle(self, named: _Named, *, is_left_out: bool) -> None:
        """A step is done, or left out: then rows of the same runs are one token behind."""
        for done in named.rows if named.rows and named.rows[0].is_repetition else ():
            for later in self._steps.values():
                for row in later.rows:
                    if row.run is done.run:
                        row.settle(is_left_out=is_left_out)
                        later.is_out_of_date = True
        for later in self._steps.values():
            if later.is_out_of_date:
                self._name(later)

    def send(self, plan: StepPlan) -> None:
        """A plan was sent: what it names is in use, and what it writes is in nobody else's."""
        self._apply_tables(plan)
        loads, backups = _pages_of(plan.loads), _pages_of(plan.backups)
        self._check_loads(loads)
        self._loads |= loads
        self._backups |= backups
        self._take_rows(plan, is_repetition=False)
        for number in range(1, plan.num_repeats + 1):
            self._take_rows(repetition(plan, number), is_repetition=True)

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

    def _take_rows(self, plan: StepPlan, *, is_repetition: bool) -> None:
        named, copied = _Named(), set(self._copied())
        columns = (plan.row_slots, plan.row_starts, plan.row_num_tokens, plan.row_write_starts)
        columns += (plan.row_loads,)
        for slot, start, count, write_start, load in zip(
            *(column.tolist() for column in columns), strict=True
        ):
            run, what = self._runs[slot], f"step {plan.step}, slot {slot}"
            num_before = self._num_repetitions(run)
            row = _Row(
                run=run,
                tables=[dict(table) for table in run.tables] if num_before else run.tables,
                start=start,
                count=count,
                write_start=write_start,
                num_before=num_before,
                is_repetition=is_repetition,
            )
            reads, writes = self._pages_of(row)

            awaited = self._loads.get(TransferId(load), set())
            others = {page for pages in self._loads.values() for page in pages} - awaited
            _require_apart(reads, others, f"{what} reads what is still loaded")
            _require_apart(writes, copied, f"{what} writes what is copied")
            for earlier in (*self._steps.values(), named):
                taken = {page for page in writes if earlier.is_of_others(page, run)}
                _require_apart(writes, taken, f"{what} writes what another request uses")
            named.add(row, reads, writes)
        self._steps[plan.step] = named

    def _num_repetitions(self, run: _Run) -> int:
        if not self._lane.settings.max_repeats:
            return 0
        rows = (row for named in self._steps.values() for row in named.rows)
        return sum(row.is_repetition and row.run is run for row in rows)

    def _name(self, named: _Named) -> None:
        """Work out anew which pages its rows may name."""
        rows, named.rows = named.rows, []
        named.is_out_of_date = False
        named.reads.clear()
        named.writes.clear()
        for row in rows:
            named.add(row, *self._pages_of(row))

    def _pages_of(self, row: _Row) -> tuple[set[Page], set[Page]]:
        """The pages that a row may read and write."""
        start, end = row.start - row.num_before, row.start + row.count
        reads = set(self._pages_of_tokens(row, start, end, looks_back=True))
        first_kept = row.write_start - row.num_before
        return reads, set(self._pages_of_tokens(row, first_kept, end, looks_back=False))

    def _pages_of_tokens(
        self, row: _Row, start: int, end: int, *, looks_back: bool
    ) -> Iterator[Page]:
        """Pages of the tokens [start, end), and of what these look back on."""
        size = self._lane.settings.page_size
        for group, spec in enumerate(self._lane.settings.layout.groups):
            first = spec.first_seen(start) if looks_back else start
            for place in range(first // size, -(-end // size)) if first < end else ():
                page_id = row.tables[group].get(place, 0)
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
