"""What a GPU actor drives: a model behind small protocols, so that a sleeping one can stand in.

Imports no torch, so that the Supervisor, too, can read a `LoadReport`.
"""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.config.kv_layout import KvLayout
from raydix.runtime.messages.arrays import Int32Array, empty
from raydix.runtime.messages.plan import StepPlan, StepResult
from raydix.runtime.tiers.expert_store import ExpertMemory
from raydix.runtime.tiers.host_arena import HostArena
from raydix.runtime.tiers.transfers import OnDone, OnError, TransferEngine, WaitLayer


class StepOutput(Protocol):
    """A step that has been enqueued."""

    def to_result(self, rank: int, step: int, compute_s: float) -> StepResult:
        """Wait for the step and make its message."""


class Runner(Protocol):
    """Carries plans out, in order, on one device."""

    def apply(self, plan: StepPlan) -> None:
        """Carry out removals, additions and block-table changes."""

    def execute(self, plan: StepPlan, wait_layer: WaitLayer) -> StepOutput:
        """Run or enqueue the plan's rows."""


class StepTimer(Protocol):
    """Times the rows of one step on their device, without what they wait for."""

    def begin(self) -> None:
        """Note that the rows come next."""

    def pause(self) -> None:
        """Note that a wait for a load comes next."""

    def resume(self) -> None:
        """Note that the rows go on."""

    def end(self) -> None:
        """Note that the rows have been run or enqueued."""

    def wait_s(self) -> float:
        """Wait until the rows are done. Returns the time that they took, without the pauses."""


class PendingDemand(Protocol):
    """Counts of experts' rows on their way to the host."""

    def to_column(self) -> Int32Array:
        """Wait for them; see `StepResult.expert_demand`."""


class Experts(Protocol):
    """What a rank does about experts that are divided among ranks, beside its steps.

    All but `take_copied`, `drain` and `close` belong to the thread that launches steps.
    """

    def apply(self, plan: StepPlan) -> None:
        """Take up the plan's placement, for its own rows already, and start this rank's copies."""

    def after_step(self) -> PendingDemand | None:
        """Note that a step with rows or padding is enqueued. Returns the demand when it is due."""

    def take_copied(self) -> Int32Array:
        """Copies that have landed since the last time; see `StepResult.copied_experts`."""

    def restore(self) -> None:
        """Go back to the placement at the start, as no step is in flight."""

    def drain(self) -> None:
        """Wait until all copies begun so far have ended."""

    def close(self) -> None:
        """End the copies."""


class NoExperts:
    """`Experts` of a lane that has them to itself, or none."""

    def apply(self, plan: StepPlan) -> None:
        """There is no placement to take up and no copy to start."""

    def after_step(self) -> None:
        """No rows are counted."""

    def take_copied(self) -> Int32Array:
        """No copies have landed."""
        return empty()

    def restore(self) -> None:
        """There is no placement to go back to."""

    def drain(self) -> None:
        """There are no copies to wait for."""

    def close(self) -> None:
        """There are no copies to end."""


class HostTimer:
    """A `StepTimer` for work that the calling thread does itself."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._passed_s = 0.0
        self._since_s = 0.0

    def begin(self) -> None:
        """Start to count time, as the rows come next."""
        self._since_s = self._clock()

    def pause(self) -> None:
        """Stop counting time, as a wait for a load comes next."""
        self._passed_s += self._clock() - self._since_s

    def resume(self) -> None:
        """Count time again, as the rows go on."""
        self._since_s = self._clock()

    def end(self) -> None:
        """Stop counting time, as the rows have been run or enqueued."""
        self._passed_s += self._clock() - self._since_s

    def wait_s(self) -> float:
        """Wait for the rows; return the seconds that they took without the pauses."""
        return self._passed_s


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlace:
    """Where an incarnation of a rank runs, and how it finds those that it steps with."""

    rank: int
    device_index: int
    """The number of the rank's CUDA device among those that its process sees."""
    expert_memory: ExpertMemory | None = None
    """The place of the node's store of experts; None: there is none."""
    meeting: str | None = None
    """A file that the ranks of one step group name, in this incarnation, and nobody else; None: the
    rank steps alone. The files of each lane or purpose are named after it.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsShape:
    """The experts that are divided among the ranks of a step group."""

    num_layers: int
    """The number of layers that have experts."""
    num_experts: int
    """The number of experts in each of these layers."""
    expert_bytes: int
    """The size of one expert's weights."""
    expert_parameters: int
    row_bytes: int
    """The size of one row of activations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    """What a GPU actor tells the Supervisor once its weights are loaded."""

    fingerprint: bytes
    """A digest of 32 bytes that is equal on ranks whose KV pages are interchangeable."""
    layout: KvLayout
    num_pages: tuple[int, ...]
    """The usable L1 pages per KV group that the rank could hold; all ranks agree on a number."""
    max_position_embeddings: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    experts: ExpertsShape | None = None
    """The experts that ranks divide; None: each lane has its own, or the model has none."""


def _no_experts(on_error: OnError) -> Experts:
    return NoExperts()


def _no_figures() -> dict[str, Any]:
    """The figures of a model that counts nothing."""
    return {}


class Weights(Protocol):
    """The weights of a loaded model, which may leave their device for a while."""

    @property
    def held_bytes(self) -> int:
        """What they take of the device now."""

    def park(self) -> None:
        """Keep them in host memory, and none of them on the device."""

    def bring_back(self) -> None:
        """Have them on the device again."""


class NoWeights:
    """`Weights` of a model that has none."""

    held_bytes = 0

    def park(self) -> None:
        """There is nothing to keep."""

    def bring_back(self) -> None:
        """There is nothing to bring."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuModel:
    """A model with its pools and everything around it that depends on its device."""

    runner: Runner
    make_timer: Callable[[], StepTimer]
    make_transfers: Callable[[HostArena, OnDone, OnError], TransferEngine] | None
    """Makes the engine that copies KV pages; None: the model keeps no KV. It stays the same as long
    as the pools do.
    """
    enter_thread: Callable[[], None]
    """Prepares a thread to drive the model; called once in each such thread."""
    beside_steps: Callable[[], AbstractContextManager[object]] = nullcontext
    """Enters a context in which what is enqueued waits for none of the steps that were before."""
    make_experts: Callable[[OnError], Experts] = _no_experts
    """Makes the rank's part in divided experts; called once each time that it serves."""
    rehearse: Callable[[], None] = lambda: None
    """Does whatever takes longer for the first time, on the thread that launches steps, before the
    first plan. Ranks that step together do so at the same time.
    """
    stats: Callable[[], dict[str, Any]] = _no_figures
    """The model's figures, which the actor adds to its own; may be called from any thread."""
    close: Callable[[], None] = lambda: None
    """Ends the model, from any thread: a step in flight may fail, but waits no longer for other
    ranks. A model that waits for nobody has nothing to do.
    """
    pool_bytes: int = 0
    """What its pages take of the device."""
    give_back: Callable[[], bool] = lambda: False
    """Frees pools, and whatever else `prepare` has made and cannot be kept. No thread drives the
    model any more. Returns whether the next `prepare` may return it again, with the same pools:
    what copies them need not be made anew. If not, nobody uses it again.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedGpuModel:
    """A model whose weights are on its device, and which has no pools yet."""

    report: LoadReport
    prepare: Callable[[tuple[int, ...]], GpuModel]
    """Makes pools of the given usable pages per KV group, then captures graphs. It may be called
    from any thread, and again once the model that it made has given its memory back. Raises
    ConfigError if the device has no room.
    """
    weights: Weights = field(default_factory=NoWeights)


BuildModel = Callable[[EngineConfig, RankPlace], LoadedGpuModel]
"""Meets the ranks that a rank steps with, and loads its part of the model."""
