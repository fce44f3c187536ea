"""What the ranks of an engine have loaded, and what they agree on before any of them serves."""

import asyncio

from raydix.errors import ConfigError
from raydix.runtime.actors.gpu_model import LoadReport

_SHOWN_DIGITS = 16


class LoadedRanks:
    """Owns: what each rank has loaded, and the pages per rank that the Scheduler counts on.

    All ranks, and all their incarnations, hold the same weights and those pages: a rank that is
    restarted makes as many, whatever memory it finds.
    """

    def __init__(self, num_ranks: int, model_path: str) -> None:
        self._num_ranks = num_ranks
        self._model_path = model_path
        self._reports: dict[int, LoadReport] = {}
        self._num_pages: tuple[int, ...] | None = None
        self._all_loaded = asyncio.Event()

    def note(self, rank: int, report: LoadReport) -> None:
        """Note that a rank has loaded. Raises ConfigError if it has other weights."""
        self._require_same_weights(rank, report)

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
                    "Give every node the same checkpoint and, as model.quantization auto keeps "
                    "float8 on some GPUs alone, GPUs of one kind, and restart the engine."
                )


def _shown(report: LoadReport) -> str:
    return report.fingerprint.hex()[:_SHOWN_DIGITS]
