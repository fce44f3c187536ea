"""AWQ, as AutoAWQ writes it for its kernel GEMM."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from raydix.errors import CheckpointError
from raydix.runtime.model.formats.definition import WeightFormat
from raydix.runtime.model.formats.layout import UNUSED_SCALES
from raydix.runtime.model.formats.module_names import is_part_of_name, read_group_size, read_names
from raydix.runtime.model.formats.word_groups import AwqLayout


@dataclass(frozen=True, slots=True, kw_only=True)
class _AwqModules:
    """`ModuleLayouts`: all modules alike, but for those that stay floats."""

    group: int | None
    kept: tuple[str, ...]
    """Names, or parts of names between points, of modules that stay floats."""
    named: frozenset[str] = frozenset()
    unused_parts: frozenset[str] = UNUSED_SCALES

    @property
    def description(self) -> str:
        """How many inputs share a scale."""
        return f"4 bits in groups of {'all' if self.group is None else self.group} inputs"

    def layout(self, module: str) -> AwqLayout | None:
        """The same for all that are quantised."""
        if any(is_part_of_name(each, module) for each in self.kept):
            return None
        return AwqLayout(group=self.group)


def _read(config: Mapping[str, Any]) -> _AwqModules:
    expected = {"bits": 4, "version": "gemm", "checkpoint_format": "gemm", "zero_point": True}
    told = {
        "bits": config.get("bits", config.get("w_bit")),
        "version": str(config.get("version", "gemm")).lower(),
        # As GPTQModel calls it, which writes this layout, too.
        "checkpoint_format": str(config.get("checkpoint_format", "gemm")).lower(),
        "zero_point": config.get("zero_point", True),
    }
    if told != expected:
        raise CheckpointError(
            f"quantization_config of AWQ has {told}; supported is {expected}. Fetch a checkpoint "
            "in another format."
        )
    key = "group_size" if "group_size" in config else "q_group_size"
    return _AwqModules(
        group=read_group_size(config, key), kept=read_names(config, "modules_to_not_convert")
    )


AWQ = WeightFormat(
    quant_method="awq",
    summary="int of 4 bits with a scale and a zero point per group of inputs, for the kernel GEMM",
    read=_read,
    kept="4 bits",
)
