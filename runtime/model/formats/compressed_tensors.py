"""compressed-tensors, as llm-compressor writes it: groups of modules, each quantised in its way."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from raydix.errors import CheckpointError
from raydix.runtime.model.formats.definition import WeightFormat
from raydix.runtime.model.formats.four_bit import (
    MXFP4_BLOCK,
    NVFP4_BLOCK,
    Mxfp4Layout,
    Nvfp4Layout,
)
from raydix.runtime.model.formats.layout import UNUSED_SCALES, Layout
from raydix.runtime.model.formats.module_names import (
    is_count,
    is_name,
    matches_target,
    precedence,
    read_names,
    require_targets,
)
from raydix.runtime.model.formats.packed import PackedLayout
from raydix.runtime.model.formats.scaled import PER_OUTPUT, PER_TENSOR, Block, ScaledLayout

_REMEDY = "Fetch config.json again, or a checkpoint in another format."
_IN_ANY_ORDER = (True, "group", "dynamic")
"""What `actorder` says where groups have inputs from anywhere."""
_FLOATS = "dense"
"""What a group is called whose modules are stored as floats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    """Modules that are quantised alike."""

    targets: tuple[str, ...]
    layout: Layout
    description: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _CompressedModules:
    """`ModuleLayouts`: the first group that a module is a target of, unless it is ignored."""

    groups: tuple[_Group, ...]
    ignored: tuple[str, ...]
    unused_parts: frozenset[str] = UNUSED_SCALES

    @property
    def description(self) -> str:
        """What each group stores."""
        return ", ".join(sorted({each.description for each in self.groups}))

    @property
    def named(self) -> frozenset[str]:
        """Targets that are modules; of classes only transformers knows which modules they are."""
        targets = {each for group in self.groups for each in group.targets}
        return frozenset(filter(is_name, targets))

    def layout(self, module: str) -> Layout | None:
        """Exact names go before patterns, and those before classes, as in the library."""
        if any(matches_target(each, module) for each in self.ignored):
            return None
        fitting = [
            (precedence(target), target, group.layout)
            for group in self.groups
            for target in group.targets
            if matches_target(target, module)
        ]
        return min(fitting, key=lambda each: each[:2])[2] if fitting else None


def _read(config: Mapping[str, Any]) -> _CompressedModules:
    _require_nothing_else(config)
    groups = config.get("config_groups")
    if not isinstance(groups, Mapping) or not groups:
        raise CheckpointError(
            f"quantization_config.config_groups is {groups!r}; expected an object with a group of "
            f"modules or more. {_REMEDY}"
        )
    read = [_read_group(name, group, config.get("format")) for name, group in groups.items()]
    ignored = read_names(config, "ignore")
    require_targets(ignored, "ignore")
    return _CompressedModules(groups=tuple(read), ignored=ignored)


def _require_nothing_else(config: Mapping[str, Any]) -> None:
    """Raise CheckpointError for what changes weights besides."""
    if config.get("transform_config"):
        raise CheckpointError(
            "quantization_config.transform_config tells of rotated weights, which are not "
            f"supported. {_REMEDY}"
        )
    sparsity = config.get("sparsity_config") or {}
    if sparsity.get("format", _FLOATS) != _FLOATS:
        raise CheckpointError(
            f"quantization_config.sparsity_config tells of {sparsity['format']!r}; supported are "
            f"weights without sparsity. {_REMEDY}"
        )


def _read_group(name: str, group: object, whole_format: object) -> _Group:
    where = f"quantization_config.config_groups.{name}"
    weights = group.get("weights") if isinstance(group, Mapping) else None
    if not isinstance(group, Mapping) or not isinstance(weights, Mapping):
        raise CheckpointError(
            f"{where} is {group!r}; expected an object whose weights are one, too. {_REMEDY}"
        )
    targets = read_names(group, "targets")
    require_targets(targets, f"config_groups.{name}.targets")
    stored_as = group.get("format") or whole_format
    layout, description = _read_layout(where, stored_as, weights)
    return _Group(targets=targets, layout=layout, description=description)


def _read_layout(where: str, stored_as: object, weights: Mapping[str, Any]) -> tuple[Layout, str]:
    bits, kind = weights.get("num_bits"), weights.get("type", "int")
    is_symmetric = bool(weights.get("symmetric", True))
    told = f"{stored_as} ({weights.get('strategy')})"
    match stored_as, kind, bits:
        case "pack-quantized", "int", int(2 | 4 | 8):
            group = _read_group_size(where, weights)
            return PackedLayout(
                bits=bits,
                group=group,
                is_symmetric=is_symmetric,
                is_in_any_order=weights.get("actorder") in _IN_ANY_ORDER,
            ), told
        case (("float-quantized" | "naive-quantized"), "float", 8):
            return ScaledLayout(dtype="F8_E4M3", block=_read_block(where, weights)), told
        case (("int-quantized" | "naive-quantized"), "int", int(bits)) if 2 <= bits <= 8:
            zero_point = None if is_symmetric else ".weight_zero_point"
            block = _read_block(where, weights)
            return ScaledLayout(dtype="I8", block=block, zero_point=zero_point), told
        case "nvfp4-pack-quantized", "float", 4:
            _require_group_size(where, weights, NVFP4_BLOCK)
            scale = ".weight_global_scale"
            return Nvfp4Layout(numbers=".weight_packed", whole_scale=scale, is_divisor=True), told
        case "mxfp4-pack-quantized", "float", 4:
            _require_group_size(where, weights, MXFP4_BLOCK)
            return Mxfp4Layout(), told
        case _:
            raise CheckpointError(
                f"{where} stores {kind} of {bits} bits as {stored_as!r}; supported are "
                "pack-quantized int of 2, 4 or 8 bits, float-quantized, int-quantized, "
                f"nvfp4-pack-quantized and mxfp4-pack-quantized. {_REMEDY}"
            )


def _read_group_size(where: str, weights: Mapping[str, Any]) -> int | None:
    """The inputs that share a scale; None: all."""
    match weights.get("strategy"), weights.get("group_size"):
        case "channel", _:
            return None
        case (("group" | "tensor_group"), size) if is_count(size):
            return size
        case strategy, size:
            raise CheckpointError(
                f"{where}.weights has strategy {strategy!r} and group_size {size!r}; expected "
                f"'channel', or 'group' and a whole number from 1. {_REMEDY}"
            )


def _require_group_size(where: str, weights: Mapping[str, Any], expected: int) -> None:
    if _read_group_size(where, weights) != expected:
        raise CheckpointError(
            f"{where}.weights.group_size is {weights.get('group_size')!r}; expected {expected}. "
            f"{_REMEDY}"
        )


def _read_block(where: str, weights: Mapping[str, Any]) -> Block:
    match weights.get("strategy"), weights.get("block_structure"):
        case "tensor", _:
            return PER_TENSOR
        case "channel", _:
            return PER_OUTPUT
        case "group", _:
            return 1, _read_group_size(where, weights)
        case "block", [rows, columns] if is_count(rows) and is_count(columns):
            return rows, columns
        case strategy, block:
            raise CheckpointError(
                f"{where}.weights has strategy {strategy!r} and block_structure {block!r}; "
                "expected 'tensor', 'channel', 'group', or 'block' and two whole numbers from 1. "
                f"{_REMEDY}"
            )


COMPRESSED_TENSORS = WeightFormat(
    quant_method="compressed-tensors",
    summary="float8 and int8 with scales by matrix, output, group or block; int of 2, 4 or 8 bits, "
    "packed; NVFP4; MXFP4",
    read=_read,
    kept="float8 and 4 bits",
)
