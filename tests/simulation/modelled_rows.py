"""What a row of a modelled rank reads from pages and writes to them."""

from collections.abc import Sequence
from dataclasses import dataclass

from raydix.runtime.config.kv_layout import GroupKind, KvLayout
from raydix.runtime.messages.plan import StepPlan
from tests.simulation.modelled_tokens import WrongHit, kv_of

Pages = list[list[list[int | None]]]
"""Per KV group and page, what each cell of it holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelledRow:
    """Tokens [start, end) of one request; what is before `write_start` is not kept."""

    hashes: Sequence[int]
    """The hashes of all the request's prefixes."""
    tables: Sequence[dict[int, int]]
    """Its block table, per KV group."""
    start: int
    end: int
    write_start: int

    def check(self, pages: Pages, layout: KvLayout) -> None:
        """Raise WrongHit unless all that it attends to is its own request's."""
        assert self.end <= len(self.hashes), f"token {self.end - 1} of {len(self.hashes)}"
        for group, table in enumerate(self.tables):
            first = layout.groups[group].first_seen(self.start)
            for position in range(first, max(self.start, min(self.write_start, self.end))):
                page = table[position // layout.page_size]
                held = pages[group][page][position % layout.page_size]
                if page == 0 or held != kv_of(self.hashes[position], group):
                    raise WrongHit(
                        f"position {position}: page {page} of group {group} holds something else"
                    )

    def write(self, pages: Pages, layout: KvLayout) -> None:
        """Leave its keys and values in its pages."""
        for group, table in enumerate(self.tables):
            is_state = layout.groups[group].kind is GroupKind.STATE
            for position in range(max(self.start, self.write_start), self.end):
                page = table[position // layout.page_size]
                if page:
                    content = kv_of(self.hashes[position], group)
                    place = position % layout.page_size
                    # A state tells of its last token alone: what it told before is gone.
                    cells = slice(None) if is_state else slice(place, place + 1)
                    held = pages[group][page]
                    held[cells] = [content] * len(held[cells])


def change_tables(tables: dict[int, list[dict[int, int]]], plan: StepPlan) -> None:
    """Change block tables, which are given by slot and KV group, as a plan says."""
    for changes in plan.tables:
        ids = iter(changes.page_ids.tolist())
        columns = (changes.slots.tolist(), changes.starts.tolist(), changes.counts.tolist())
        for slot, first, count in zip(*columns, strict=True):
            table = tables[slot][changes.group]
            table.update({first + index: next(ids) for index in range(count)})
