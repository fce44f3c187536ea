"""FP8 with a scale for each block, as DeepSeek stores it, or for each matrix, as Mistral does."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from raydix.errors import CheckpointError
from raydix.runtime.model.formats.definition import WeightFormat
from raydix.runtime.model.formats.layout import UNUSED_SCALES
from raydix.runtime.model.formats.module_names import is_count, is_part_of_name, read_names
from raydix.runtime.model.formats.scaled import PER_TENSOR, Block, ScaledLayout

_BLOCK_SIZE = "weight_block_size"
_E4M3 = ("e4m3", "float8_e4m3fn")
"""What `fmt` calls it: DeepSeek's name, and torch's, which MiniMax has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fp8Modules:
    """`ModuleLayouts`: all modules alike, but for those that stay floats."""

    block: Block
    scale: str
    """The part with the scales."""
    kept: tuple[str, ...]
    """Names, or parts of names between points, of modules that stay floats."""
    named: frozenset[str] = frozenset()
    unused_parts: frozenset[str] = UNUSED_SCALES

    @property
    def description(self) -> str:
        """What shares a scale."""
        if self.block == PER_TENSOR:
            return "a scale per matrix"
        return f"a scale per block of {self.block[0]} x {self.block[1]}"

    def layout(self, module: str) -> ScaledLayout | None:
        """Scales that are called inverse multiply, too."""
        if any(is_part_of_name(each, module) for each in self.kept):
            return None
        return ScaledLayout(
            dtype="F8_E4M3",
            block=self.block,
            scale=self.scale,
        )


def _read(config: Mapping[str, Any]) -> _Fp8Modules:
    if config.get("fmt", "e4m3") not in _E4M3:
        raise CheckpointError(
            f"quantization_config.fmt is {config['fmt']!r}; supported is e4m3, called "
            f"{' or '.join(map(repr, _E4M3))}. Fetch a checkpoint in another format."
        )
    # AutoFP8, which came before, knows no blocks, and other names.
    is_first = _BLOCK_SIZE not in config
    return _Fp8Modules(
        block=_read_block(config.get(_BLOCK_SIZE)),
        scale=".weight_scale" if is_first else ".weight_scale_inv",
        kept=(*read_names(config, "modules_to_not_convert"), *read_names(config, "ignored_layers")),
    )


def _read_block(size: object) -> Block:
    match size:
        case None:
            return PER_TENSOR
        case [rows, columns] if is_count(rows) and is_count(columns):
            return rows, columns
        case _:
            raise CheckpointError(
                f"quantization_config.weight_block_size is {size!r}; expected two whole numbers "
                "from 1, or null for a scale per matrix. Fetch config.json again."
            )


FP8 = WeightFormat(
    quant_method="fp8",
    summary="float8 (e4m3) with a scale per block or per matrix",
    read=_read,
    kept="float8",
)
