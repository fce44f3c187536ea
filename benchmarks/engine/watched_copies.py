"""When the copies of a GPU actor were under way, as whoever started its engine sees it."""

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from raydix.runtime.actors.gpu_model import GpuModel, LoadedGpuModel, RankPlace
from raydix.runtime.actors.torch_builder import build_torch_model
from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.messages.plan import PageCopies
from raydix.runtime.tiers.host_arena import HostArena
from raydix.runtime.tiers.transfers import OnDone, OnError, TransferDone, TransferEngine


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A copy was under way. Times are `time.monotonic()`, which the processes of a host share."""

    is_load: bool
    num_pages: int
    began_s: float
    ended_s: float


class WatchedCopies:
    """What a GPU actor of another process notes in a file: copies of many pages.

    Owns: the windows that count, and how far the notes were read.
    """

    def __init__(self, notes: Path, min_pages: int) -> None:
        """`notes`: a file of which nobody else knows. Copies of fewer pages are not noted."""
        self._notes = notes
        self._min_pages = min_pages
        self._since_s = 0.0
        self._num_read = 0
        self._windows: list[Window] = []
        notes.touch()

    def begin(self) -> None:
        """Copies count that begin from now on."""
        self.windows()
        self._windows = []
        self._since_s = time.monotonic()

    def windows(self) -> list[Window]:
        """The windows of copies that began since `begin`, in order of completion."""
        with self._notes.open() as notes:
            notes.seek(self._num_read)
            # The last line may still be being written.
            whole, end, _ = notes.read().rpartition("\n")
        self._num_read += len(whole + end)
        windows = [Window(**json.loads(line)) for line in whole.splitlines()]
        self._windows += [each for each in windows if each.began_s >= self._since_s]
        return self._windows

    def build_model(self, config: EngineConfig, place: RankPlace) -> LoadedGpuModel:
        """Build the model with watched transfers; called in the actor's process."""
        loaded = build_torch_model(config, place)
        return replace(loaded, prepare=lambda num_pages: self._watch(loaded.prepare(num_pages)))

    def _watch(self, model: GpuModel) -> GpuModel:
        make = model.make_transfers
        assert make is not None, "a model that generates keeps KV"

        def make_watched(arena: HostArena, on_done: OnDone, on_error: OnError) -> TransferEngine:
            return _WatchedTransfers(self, make, arena, on_done, on_error)

        return replace(model, make_transfers=make_watched)

    def note(self, window: Window) -> None:
        """A copy has ended; called in the actor's process."""
        if window.num_pages >= self._min_pages:
            with self._notes.open("a") as notes:
                notes.write(json.dumps(asdict(window)) + "\n")


class _WatchedTransfers:
    """A `TransferEngine` that notes what passes through another one.

    Owns: how many pages each transfer has that has not ended.
    """

    def __init__(
        self,
        watched: WatchedCopies,
        make: Callable[[HostArena, OnDone, OnError], TransferEngine],
        arena: HostArena,
        on_done: OnDone,
        on_error: OnError,
    ) -> None:
        self._watched = watched
        self._on_done = on_done
        self._num_pages: dict[int, int] = {}
        self._inner = make(arena, self._end, on_error)

    def start(self, loads: PageCopies, backups: PageCopies) -> None:
        """Count the pages of each transfer, then start it."""
        for copies in (loads, backups):
            ids, counts = np.unique(copies.transfer_ids, return_counts=True)
            self._num_pages.update(zip(ids.tolist(), counts.tolist(), strict=True))
        self._inner.start(loads, backups)

    def wait_layer(self, transfer_id: int, layer: int) -> None:
        """Wait as the engine inside does."""
        self._inner.wait_layer(transfer_id, layer)

    def drain(self) -> None:
        """Drain the engine inside."""
        self._inner.drain()

    def close(self) -> None:
        """Close the engine inside."""
        self._inner.close()

    def abandon_peers(self) -> None:
        """Let the engine inside abandon its peers."""
        self._inner.abandon_peers()

    def _end(self, done: TransferDone) -> None:
        window = Window(
            is_load=done.num_bytes > 0,
            num_pages=self._num_pages.pop(done.transfer_id),
            began_s=done.started_s,
            ended_s=done.ended_s,
        )
        self._watched.note(window)
        self._on_done(done)
