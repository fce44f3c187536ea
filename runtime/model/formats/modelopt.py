"""Model Optimizer's FP8 and NVFP4, also where modules are quantised in either way."""

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from raydix.errors import CheckpointError
from raydix.runtime.model.formats.definition import WeightFormat
from raydix.runtime.model.formats.four_bit import NVFP4_BLOCK, Nvfp4Layout
from raydix.runtime.model.formats.layout import UNUSED_SCALES, Layout
from raydix.runtime.model.formats.module_names import read_names
from raydix.runtime.model.formats.scaled import PER_OUTPUT, PER_TENSOR, ScaledLayout

_MIXED = "MIXED_PRECISION"
_NVFP4 = Nvfp4Layout(numbers=".weight", whole_scale=".weight_scale_2", is_divisor=False)
_LAYOUTS: Mapping[str, Layout] = {
    "FP8": ScaledLayout(dtype="F8_E4M3", block=PER_TENSOR),
    "FP8_PER_CHANNEL_PER_TOKEN": ScaledLayout(dtype="F8_E4M3", block=PER_OUTPUT),
    "NVFP4": _NVFP4,
    "W4A16_NVFP4": _NVFP4,
}
"""The layouts by what `quant_algo` calls them."""
_REMEDY = "Fetch its files again, or a checkpoint in another format."


@dataclass(frozen=True, slots=True, kw_only=True)
class _ModelOptModules:
    """`ModuleLayouts`: one layout for all but excluded modules, or one for each that is named."""

    algorithm: str
    excluded: tuple[str, ...]
    """Names with the wildcards of shells."""
    by_name: tuple[tuple[str, str], ...]
    """Modules, or what their names begin with, and the algorithm of each, if that differs."""
    unused_parts: frozenset[str] = UNUSED_SCALES

    @property
    def description(self) -> str:
        """The algorithm, or both."""
        return " and ".join(sorted({each for _, each in self.by_name} or {self.algorithm}))

    @property
    def named(self) -> frozenset[str]:
        """The modules that mixed precision lists."""
        return frozenset(name for name, _ in self.by_name)

    def layout(self, module: str) -> Layout | None:
        """The longest name that fits decides, as experts are named together."""
        if any(fnmatchcase(module, each) for each in self.excluded):
            return None
        if self.algorithm != _MIXED:
            return _LAYOUTS[self.algorithm]
        stems = [each for each in self.by_name if f"{module}.".startswith(f"{each[0]}.")]
        return _LAYOUTS[max(stems, key=lambda each: len(each[0]))[1]] if stems else None


def _read(config: Mapping[str, Any]) -> _ModelOptModules:
    # A file of its own has it one level below.
    told = config.get("quantization", config)
    if not isinstance(told, Mapping):
        raise CheckpointError(f"quantization is {told!r}; expected an object. {_REMEDY}")
    algorithm = told.get("quant_algo")
    layers = told.get("quantized_layers")
    layers = layers if algorithm == _MIXED and isinstance(layers, Mapping) else {}
    by_name = tuple((name, _read_algorithm(each)) for name, each in layers.items())
    if not by_name:
        algorithm = _read_algorithm(told)

    return _ModelOptModules(
        algorithm=str(algorithm),
        excluded=(*read_names(told, "exclude_modules"), *read_names(told, "ignore")),
        by_name=by_name,
    )


def _read_algorithm(told: object) -> str:
    algorithm = told.get("quant_algo") if isinstance(told, Mapping) else told
    group = told.get("group_size") if isinstance(told, Mapping) else None
    layout = _LAYOUTS.get(str(algorithm))
    if layout is None or (layout == _NVFP4 and group not in (None, NVFP4_BLOCK)):
        raise CheckpointError(
            f"The checkpoint is quantised by quant_algo {algorithm!r}, group_size {group!r}; "
            f"supported are {', '.join(_LAYOUTS)}, and {_MIXED} of these. {_REMEDY}"
        )
    return str(algorithm)


MODELOPT = WeightFormat(
    quant_method="modelopt",
    summary="float8 (e4m3) with a scale per matrix or output; NVFP4; both in one",
    read=_read,
    kept="float8",
)
