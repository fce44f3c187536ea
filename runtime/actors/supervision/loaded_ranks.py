"""What the ranks of an engine have loaded, and what they agree on before any of them serves."""

import asyncio

from raydix.errors import ConfigError
from raydix.runtime.actors.gpu_model import LoadReport

_SHOWN_DIGITS = 16


class LoadedRanks:
    """Owns: what each rank has loaded, and the pages per rank that the Scheduler counts on.

    All ranks, and all their incarnations, hold the same weights and at least those pages.
    """

    def __init__(self, num_ranks: int, model_path: str) -> None:
        self._num_ranks = num_ranks
        self._model_path = model_path
        self._reports: dict[int, LoadReport] = {}
        self._num_pages: tuple[int, ...] | None = None
        self._all_loaded = asyncio.Event()

    @property
    def agreed_pages(self) -> tuple[int, ...] | None:
        """L1 pages of each KV group per rank; None until every rank has loaded."""
        return self._num_pages

    def note(self, rank: int, report: LoadReport) -> None:
        """An incarnation of a rank has loaded. Raises ConfigError if it does not fit the others."""
        self._require_same_weights(rank, report)
        self._require_agreed_pages(rank, report)

        self._reports[rank] = report
        if len(self._reports) == self._num_ranks and self._num_pages is None:
            reported = [report.num_pages for report in self._reports.values()]
            self._num_pages = tuple(map(min, zip(*reported, strict=True)))
            self._all_loaded.set()

    async def agreed(self) -> tuple[LoadReport, tuple[int, ...]]:
        """What holds for every rank, once all have loaded: the first one's report, the pages."""
        await self._all_loaded.wait()
        assert self._num_pages is not None, "every rank has loaded"
        return self._reports[0], self._num_pages

    def _require_same_weights(self, rank: int, report: LoadReport) -> None:
        for other, known in self._reports.items():
            if known.fingerprint != report.fingerprint:
                raise ConfigError(
                    f"rank {rank} loaded other weights from {self._model_path} than rank {other} "
                    f"({_shown(report)} and {_shown(known)}). "
                    "Give every node the same checkpoint and restart the engine."
                )

    def _require_agreed_pages(self, rank: int, report: LoadReport) -> None:
        if self._num_pages is None:
            return
        if any(own < agreed for own, agreed in zip(report.num_pages, self._num_pages, strict=True)):
            raise ConfigError(
                f"rank {rank} was restarted with {_per_group(report.num_pages)} L1 pages; the "
                f"Scheduler counts on {_per_group(self._num_pages)}. Set cache.l1.num_pages to "
                "what every rank can hold and "
                "restart the engine."
            )


def _shown(report: LoadReport) -> str:
    return report.fingerprint.hex()[:_SHOWN_DIGITS]


def _per_group(num_pages: tuple[int, ...]) -> str:
    return "+".join(map(str, num_pages))
