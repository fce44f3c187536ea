"""What a file of this folder says about its way of storing weights."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from raydix.runtime.model.formats.layout import ModuleLayouts
from raydix.runtime.model.formats.restore_plan import RestorePlan, plan_restoring
from raydix.runtime.model.formats.stored_tensor import StoredTensor

RESTORE = "restore"
"""The way in which weights become floats of the serving dtype as they are read."""
NATIVE = "native"
"""The way in which weights in float8 or four bits stay so; all others are restored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFormat:
    """How checkpoints store weights, whatever their family."""

    quant_method: str | None
    """What `quantization_config` of config.json calls it; None: there is none."""
    summary: str
    """What it stores, in a sentence for people."""
    read: Callable[[Mapping[str, Any]], ModuleLayouts]
    """Reads `quantization_config`. Raises CheckpointError, naming the limit, for what it lacks."""
    kept: str | None = None
    """What of it may stay as it is stored, for people; None: nothing."""
    model_types: tuple[str, ...] | None = None
    """Families that are stored so, by the `model_type` of config.json; None: every family."""

    def may_store(self, model_type: str) -> bool:
        """Whether checkpoints of this family may be stored so."""
        return self.model_types is None or model_type in self.model_types


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantisation:
    """How one checkpoint's weights are stored, as its config tells."""

    format: WeightFormat
    layouts: ModuleLayouts
    config: Mapping[str, Any] | None
    """What was read; None: the config tells of no quantisation."""
    way: str = RESTORE
    """RESTORE or NATIVE."""

    @property
    def description(self) -> str:
        """The format and the way, for people."""
        return self._told if self.config is None else f"{self._told} (way: {self.way})"

    @property
    def restores_what_could_stay(self) -> bool:
        """Whether weights are restored that some GPUs can keep as they are stored."""
        return self.way == RESTORE and self.format.kept is not None

    @property
    def identity(self) -> str:
        """Where it differs, the same stored bytes are other weights. Empty without quantisation."""
        if self.config is None:
            return ""
        told = json.dumps(self.config, sort_keys=True)
        return f"{self.format.quant_method} {self.way} {told}"

    def plan(self, stored: Iterable[StoredTensor]) -> RestorePlan:
        """What to make of these tensors, all that the checkpoint has.

        Raises CheckpointError if they are not what the config tells.
        """
        return plan_restoring(stored, self.layouts, self._told)

    @property
    def _told(self) -> str:
        method = self.format.quant_method
        return (
            self.layouts.description if method is None else f"{method}, {self.layouts.description}"
        )
