"""A lane's plan in the making, and what the lanes of its step group have to do together."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from raydix.ids import TransferId
from raydix.runtime.messages.plan import AddedRequest
from raydix.runtime.scheduler.prompt_shares import StepRoom
from raydix.runtime.scheduler.ranks.decode_rows import DecodeRows
from raydix.runtime.scheduler.ranks.in_flight import PlannedRow
from raydix.runtime.scheduler.ranks.lane import Lane
from raydix.runtime.scheduler.request.request import RequestState
from raydix.runtime.scheduler.request.transfers import Backup, Load


@dataclass(slots=True)
class Draft:
    """Owns: a lane's plan in the making."""

    room: StepRoom
    """The room for prompt tokens, known once the decode rows are drafted."""
    decodes: DecodeRows | None = None
    rows: list[PlannedRow] = field(default_factory=list)
    added: list[AddedRequest] = field(default_factory=list)
    row_columns: list[tuple[int, int, int, int, int, int]] = field(default_factory=list)
    table_columns: list[tuple[int, int, int]] = field(default_factory=list)
    table_pages: list[list[list[int]]] = field(default_factory=list)
    """The new page ids of each changed block table, per KV group."""
    num_tokens: int = 0
    load_ends_s: dict[TransferId, float] | None = None
    """When each load under way will end, in seconds; computed once, for all rows that wait for
    loads.
    """
    loads: list[Load] = field(default_factory=list)
    backups: list[Backup] = field(default_factory=list)

    @property
    def has_rows(self) -> bool:
        """Whether there is something to compute."""
        return self.decodes is not None or bool(self.rows)

    @property
    def has_copies(self) -> bool:
        """Whether there is a load or backup to start."""
        return bool(self.loads or self.backups)

    @property
    def num_rows(self) -> int:
        """The number of rows, of the decode batch and others together."""
        return len(self.rows) + (0 if self.decodes is None else len(self.decodes.slots))

    def set_budget(self, budget_tokens: int, shared_tokens: int) -> None:
        """Set how many prompt tokens the step may take, given its decode rows."""
        self.room = self.room.bounded(budget_tokens, shared_tokens)

    def charge(self, num_tokens: int) -> None:
        """Take room for a prompt's row of so many tokens."""
        self.room = self.room.less(num_tokens)

    def add_decodes(self, rows: DecodeRows) -> None:
        """Add the rows of the decode batch."""
        self.decodes = rows
        self.num_tokens += len(rows.slots)

    def repeat_decodes(self, rows: DecodeRows) -> None:
        """Let ranks repeat the rows of the decode batch, which are these."""
        self.decodes = rows

    def add_tables(self, changed: Sequence[RequestState]) -> None:
        """Tell the device of these block tables of decoding requests, which have changed."""
        for request in changed:
            self._add_table(request)

    def add_row(
        self, request: RequestState, start: int, num_tokens: int, position: int | None
    ) -> None:
        """Add a row that is not of the batch, for the tokens from `start` on.

        `position`: of the output token that it samples, if any.
        """
        assert request.slot is not None, "only a running request has rows"
        added = request.introduce()
        if added is not None:
            self.added.append(added)
        self._add_table(request)

        end = start + num_tokens
        row = PlannedRow(
            request=request, run=request.run, num_computed=end, output_position=position
        )
        self.rows.append(row)
        columns = (
            request.slot,
            start,
            num_tokens,
            max(start, min(request.write_start, end)),
            -1 if position is None else position,
            -1 if request.load is None else request.load.transfer_id,
        )
        self.row_columns.append(columns)
        self.num_tokens += num_tokens

    def _add_table(self, request: RequestState) -> None:
        """Tell the device what is new in a request's block table."""
        start, page_ids = request.table.take_unsent()
        if page_ids[0]:
            assert request.slot is not None, "only a running request has a table"
            self.table_columns.append((request.slot, start, len(page_ids[0])))
            self.table_pages.append(page_ids)

    def note_load_ends(self, ends_s: dict[TransferId, float]) -> None:
        """Note when each load under way will end."""
        self.load_ends_s = ends_s

    def load_end_s(self, load: Load) -> float:
        """When a load under way will end; `note_load_ends` has told."""
        assert self.load_ends_s is not None, "it is known by now"
        return self.load_ends_s[load.transfer_id]

    def add_copies(self, loads: list[Load], backups: list[Backup]) -> None:
        """Let the plan start these copies, too."""
        self.loads += loads
        self.backups += backups


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupWork:
    """What the lanes of a step group have to do in a step: each waits for all of them."""

    most_decodes: int
    """The number of decode rows of the lane that has the most."""
    num_decodes: int
    num_prompts: int

    @classmethod
    def of(cls, drafts: Sequence[tuple[Lane, Draft]]) -> "GroupWork":
        """Add up the work of lanes whose decode rows are drafted."""
        decodes = [draft.num_rows for _, draft in drafts]
        longer = [
            sum([request.num_to_plan > 1 for request in lane.prefilling.values()])
            for lane, _ in drafts
            if lane.prefilling
        ]
        return cls(
            most_decodes=max(decodes),
            num_decodes=sum(decodes),
            num_prompts=sum(longer) + sum([len(lane.waiting) for lane, _ in drafts]),
        )
