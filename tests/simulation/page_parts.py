"""Which part of pages a rank copies: its heads of most, its share of those that all ranks have."""

from raydix.runtime.config.kv_layout import GroupKind
from raydix.runtime.scheduler.settings import SchedulerSettings
from tests.simulation.page_copy import PageCopy


class PageParts:
    """Says what one rank of a lane, of this number within it, copies."""

    def __init__(self, settings: SchedulerSettings, part: int) -> None:
        self._settings = settings
        self._part = part

    def is_latent(self, group: int) -> bool:
        """Whether all ranks have the same pages of this group."""
        return self._settings.layout.groups[group].kind is GroupKind.LATENT

    def is_shared(self, entries: list[PageCopy]) -> bool:
        """Whether other ranks copy a share of these pages."""
        is_latent = any(self.is_latent(entry.group) for entry in entries)
        return is_latent and self._settings.ranks_per_lane > 1

    def own_share(self, entries: list[PageCopy]) -> list[PageCopy]:
        """The copies of this rank: of latent pages, which all ranks have, those of its number."""
        width, own = self._settings.ranks_per_lane, []
        for group in range(self._settings.num_groups):
            pages = [entry for entry in entries if entry.group == group]
            own += pages[self._part :: width] if self.is_latent(group) else pages
        return own

    def part_of(self, group: int) -> int:
        """Where a host page has what this rank keeps of it: latent pages are there once."""
        return 0 if self.is_latent(group) else self._part

    def loaded_bytes(self, entries: list[PageCopy]) -> int:
        """The bytes that this rank copies."""
        layout = self._settings.layout
        return sum(layout.payload_bytes(entry.group) for entry in self.own_share(entries))
