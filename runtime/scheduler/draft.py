"""A lane's plan in the making, and what the lanes of its step group have to do together."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from raydix.ids import TransferId
from raydix.runtime.messages.plan import AddedRequest
from raydix.runtime.scheduler.decodes import DecodeRows
from raydix.runtime.scheduler.in_flight import PlannedRow
from raydix.runtime.scheduler.lane import Lane
from raydix.runtime.scheduler.prompt_shares import StepRoom
from raydix.runtime.scheduler.transfers import Backup, Load


@dataclass(slots=True)
class Draft:
    """A lane's plan in the making."""

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
    def num_rows(self) -> int:
        """The number of rows, of the decode batch and others together."""
        return len(self.rows) + (0 if self.decodes is None else len(self.decodes.slots))

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
            sum(request.num_to_plan > 1 for request in lane.prefilling.values())
            for lane, _ in drafts
        ]
        return cls(
            most_decodes=max(decodes),
            num_decodes=sum(decodes),
            num_prompts=sum(longer) + sum([len(lane.waiting) for lane, _ in drafts]),
        )
