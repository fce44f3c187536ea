"""Which weights of a quantised checkpoint stay in float8, and are multiplied so."""

from collections.abc import Collection, Iterator
from dataclasses import replace

from raydix.errors import ConfigError
from raydix.kernels.fp8.form import KERNEL_BLOCKS, PER_OUTPUT, Block
from raydix.runtime.config.policies import QuantizationWay
from raydix.runtime.model.families.definition import FamilyDefinition
from raydix.runtime.model.families.weight_names import stored_names
from raydix.runtime.model.formats.layout import ModuleLayouts
from raydix.runtime.model.formats.scaled import PER_TENSOR, ScaledLayout
from raydix.runtime.model.spec.spec import LayerSpec, ModelSpec, MoeMlpSpec, ScaledPart

_KERNEL_CAPABILITY = (9, 0)
"""The compute capability for which there are kernels."""
_LAYER = "layers.{}."
_EXPERT = "{}."
_MULTIPLIED = frozenset(
    {
        *(f"attention.{each}" for each in ("q", "k", "v", "gate", "output")),
        *(f"attention.{each}" for each in ("q_down", "q_up", "latent")),
        *(f"attention.delta.{each}" for each in ("q", "k", "v", "gate", "output")),
        *(f"mlp.{each}" for each in ("gate", "up", "down")),
        *(f"mlp.experts.{each}" for each in ("gate", "up", "down")),
        *(f"mlp.shared.{each}" for each in ("gate", "up", "down")),
    }
)
"""What layers multiply by, as the decoder calls it. All else is small, or looked into."""


def kernel_blocks(
    way: QuantizationWay, device: str, capability: tuple[int, int] | None
) -> Collection[Block] | None:
    """The blocks in which weights may stay on a device; None: any.

    capability: that of the GPU; None: it is not known. Raises ConfigError if weights are to stay
    on a GPU that has no kernels for them.
    """
    match way, device:
        # Products of 256 tokens and more were slower than bf16's on an H100 (docs/formats.md).
        case (QuantizationWay.RESTORE, _) | (QuantizationWay.AUTO, _):
            return ()
        case QuantizationWay.NATIVE, "cpu":
            return None
        case _:
            if capability not in (None, _KERNEL_CAPABILITY):
                raise ConfigError(
                    f"model.quantization is native, but the GPU has compute capability "
                    f"{'.'.join(map(str, capability))}; there are kernels for 9.0 (H100, H200). "
                    "Set model.quantization to auto or restore."
                )
            return KERNEL_BLOCKS


def with_scaled_parts(
    spec: ModelSpec,
    family: FamilyDefinition,
    layouts: ModuleLayouts,
    allowed: Collection[Block] | None,
) -> ModelSpec:
    """The same model, in which layers say what stays in blocks.

    `allowed`: the blocks that may, as of `kernel_blocks`.
    """
    woven = _woven_weights(family, spec)
    patterns = {
        name.removeprefix(_LAYER): stored
        for name, stored in family.weight_names.items()
        if name.startswith(_LAYER)
    }

    def scaled(index: int, layer: LayerSpec) -> Iterator[ScaledPart]:
        for name, stored in sorted(patterns.items()):
            part = name.replace(_EXPERT, "")
            if part not in _MULTIPLIED:
                continue
            modules = _modules(stored, index, layer)
            blocks = {_block(module, layouts, woven) for module in modules}
            block = blocks.pop() if len(blocks) == 1 else None
            if block is not None and (allowed is None or block in allowed):
                yield ScaledPart(name=part, block=block)

    layers = tuple(
        replace(layer, scaled=tuple(scaled(index, layer)))
        for index, layer in enumerate(spec.layers)
    )
    return replace(spec, layers=layers)


def _modules(stored: str, index: int, layer: LayerSpec) -> Iterator[str]:
    """What a checkpoint calls a weight of a layer; of its experts, that of each."""
    if stored.count("{}") == 1:
        yield stored.format(index)
    elif isinstance(layer.mlp, MoeMlpSpec):
        yield from (stored.format(index, expert) for expert in range(layer.mlp.num_experts))


def _block(module: str, layouts: ModuleLayouts, woven: Collection[str]) -> Block | None:
    """The block of a module that may stay as it is stored; None for all others."""
    # The config may mean a module by either of its names.
    found = {layouts.layout(name) for name in stored_names(module)}
    layout = found.pop() if len(found) == 1 else None
    if (
        not isinstance(layout, ScaledLayout)
        or layout.dtype != "F8_E4M3"
        or layout.zero_point is not None
        or f"{module}.weight" in woven
    ):
        return None
    rows, columns = layout.block
    if layout.block == PER_TENSOR:
        return PER_OUTPUT
    return None if rows is None else (rows, columns)


def _woven_weights(family: FamilyDefinition, spec: ModelSpec) -> frozenset[str]:
    """Weights whose rows a checkpoint stores in turns with those of others, across its blocks."""
    fused = family.fused(spec).values()
    return frozenset(part for rows in fused if rows.num_turns > 1 for part in rows.parts)
