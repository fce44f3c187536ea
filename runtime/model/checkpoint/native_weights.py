"""Which weights of a quantised checkpoint stay as they are stored, and are multiplied so."""

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace

from raydix.errors import ConfigError
from raydix.kernels.fp8.form import KERNEL_BLOCKS
from raydix.kernels.int4.form import Int4Groups
from raydix.kernels.weights.kept_form import KeptForm
from raydix.runtime.config.policies import QuantizationWay
from raydix.runtime.model.families.definition import FamilyDefinition
from raydix.runtime.model.families.weight_names import stored_names
from raydix.runtime.model.formats.kept_layout import KeptLayout
from raydix.runtime.model.formats.layout import ModuleLayouts
from raydix.runtime.model.spec.spec import (
    Int4Part,
    LayerSpec,
    ModelSpec,
    MoeMlpSpec,
    ScaledPart,
)

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


MayStay = Callable[[KeptForm], bool]
"""Whether a weight of this form may stay."""


def kept_forms(
    way: QuantizationWay, device: str, capability: tuple[int, int] | None
) -> MayStay | None:
    """The forms in which weights may stay on a device; None: all are restored.

    capability: that of the GPU; None: it is not known, and weights stay only if they are to. Raises
    ConfigError if they are to stay on a GPU that has no kernels for them.
    """
    match way, device:
        case QuantizationWay.RESTORE, _:
            return None
        case QuantizationWay.AUTO, _:
            # Those of four bits are slower than bf16 where tokens are many (docs/formats.md).
            has_kernels = device == "cuda" and capability == _KERNEL_CAPABILITY
            return _float8_with_kernel if has_kernels else None
        case QuantizationWay.NATIVE, "cpu":
            return _any_form
        case _:
            if capability not in (None, _KERNEL_CAPABILITY):
                raise ConfigError(
                    f"model.quantization is native, but the GPU has compute capability "
                    f"{'.'.join(map(str, capability))}; there are kernels for 9.0 (H100, H200). "
                    "Set model.quantization to auto or restore."
                )
            return _any_with_kernel


def _any_form(form: KeptForm) -> bool:
    return True


def _float8_with_kernel(form: KeptForm) -> bool:
    return not isinstance(form, Int4Groups) and form in KERNEL_BLOCKS


def _any_with_kernel(form: KeptForm) -> bool:
    return form.has_kernel if isinstance(form, Int4Groups) else _float8_with_kernel(form)


def with_scaled_parts(
    spec: ModelSpec, family: FamilyDefinition, layouts: ModuleLayouts, may_stay: MayStay
) -> ModelSpec:
    """The same model, in which layers say what stays as it is stored, of what may."""
    woven = _woven_weights(family, spec)
    patterns = {
        name.removeprefix(_LAYER): stored
        for name, stored in family.weight_names.items()
        if name.startswith(_LAYER)
    }

    def scaled(index: int, layer: LayerSpec) -> Iterator[ScaledPart | Int4Part]:
        for name, stored in sorted(patterns.items()):
            part = name.replace(_EXPERT, "")
            if part not in _MULTIPLIED:
                continue
            modules = _modules(stored, index, layer)
            forms = {_kept_form(module, layouts, woven) for module in modules}
            form = forms.pop() if len(forms) == 1 else None
            if form is None or not may_stay(form):
                continue
            if isinstance(form, Int4Groups):
                yield Int4Part(name=part, form=form)
            else:
                yield ScaledPart(name=part, block=form)

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


def _kept_form(module: str, layouts: ModuleLayouts, woven: Collection[str]) -> KeptForm | None:
    """The form in which a module may stay as it is stored; None for all others."""
    # The config may mean a module by either of its names.
    found = {layouts.layout(name) for name in stored_names(module)}
    layout = found.pop() if len(found) == 1 else None
    if not isinstance(layout, KeptLayout) or f"{module}.weight" in woven:
        return None
    return layout.kept_form


def _woven_weights(family: FamilyDefinition, spec: ModelSpec) -> frozenset[str]:
    """Weights whose rows a checkpoint stores in turns with those of others, across its blocks."""
    fused = family.fused(spec).values()
    return frozenset(part for rows in fused if rows.num_turns > 1 for part in rows.parts)
