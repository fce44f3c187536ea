"""Which weights of a quantised checkpoint stay as they are stored, and are multiplied so."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from operator import attrgetter

from raydix.errors import ConfigError
from raydix.kernels.fp8.form import KERNEL_BLOCKS
from raydix.kernels.int4.form import Int4Groups
from raydix.kernels.weights.kept_form import KeptForm, form_of_rows
from raydix.kernels.weights.rank_share import RankShare
from raydix.runtime.config.policies import QuantizationWay
from raydix.runtime.model.families.definition import FamilyDefinition
from raydix.runtime.model.families.weight_names import stored_names
from raydix.runtime.model.formats.kept_layout import KeptLayout
from raydix.runtime.model.formats.layout import ModuleLayouts
from raydix.runtime.model.spec.products import keepable_products
from raydix.runtime.model.spec.spec import (
    Int4Part,
    LayerSpec,
    ModelSpec,
    MoeMlpSpec,
    ScaledPart,
)

KERNEL_CAPABILITY = (9, 0)
"""The compute capability for which there are kernels."""
_LAYER = "layers.{}."
_EXPERTS, _EACH_EXPERT = ".experts.", ".experts.{}."
_WEIGHT = ".weight"

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
            has_kernels = device == "cuda" and capability == KERNEL_CAPABILITY
            return _float8_with_kernel if has_kernels else None
        case QuantizationWay.NATIVE, "cpu":
            return _any_form
        case _:
            if capability not in (None, KERNEL_CAPABILITY):
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
    """The same model, in which layers say what stays as it is stored, of what may.

    What ranks would cut within a block or group does not, though layers say so.
    """
    stored = _StoredModules(family, spec, layouts)

    def of_layer(index: int, layer: LayerSpec) -> Iterator[ScaledPart | Int4Part]:
        for products in keepable_products(layer, spec.hidden_size):
            names = [name for product in products for name in product.num_outputs]
            forms = {name: stored.form(name, index, layer) for name in names}
            found = {
                name: form for name, form in forms.items() if form is not None and may_stay(form)
            }
            kept = [
                form_of_rows(found, product.num_outputs, product.num_inputs, RankShare())
                for product in products
            ]
            if None not in kept and len(set(map(type, kept))) == 1:
                yield from (_part(name, found[name]) for name in names)

    layers = tuple(
        replace(layer, scaled=tuple(sorted(of_layer(index, layer), key=attrgetter("name"))))
        for index, layer in enumerate(spec.layers)
    )
    return replace(spec, layers=layers)


def _part(name: str, form: KeptForm) -> ScaledPart | Int4Part:
    if isinstance(form, Int4Groups):
        return Int4Part(name=name, form=form)
    return ScaledPart(name=name, block=form)


class _StoredModules:
    """The modules in which a checkpoint stores the weights of layers, and their layouts."""

    def __init__(self, family: FamilyDefinition, spec: ModelSpec, layouts: ModuleLayouts) -> None:
        self._names = family.weight_names
        self._layouts = layouts
        fused = family.fused(spec)
        self._fused_by_part = {
            part: (name.removesuffix(_WEIGHT), rows)
            for name, rows in fused.items()
            for part in rows.parts
        }

    def form(self, name: str, index: int, layer: LayerSpec) -> KeptForm | None:
        """The form in which a weight of a layer may stay; of its experts, that of each."""
        pattern = self._names.get(_LAYER + name.replace(_EXPERTS, _EACH_EXPERT))
        if pattern is None:
            return None
        forms = {self._kept_form(module) for module in _modules(pattern, index, layer)}
        return forms.pop() if len(forms) == 1 else None

    def _kept_form(self, module: str) -> KeptForm | None:
        fused = self._fused_by_part.get(module + _WEIGHT)
        if fused is not None:
            # The config knows the module that is stored, not the parts of it.
            module, rows = fused
            # Rows in turns with those of others lie across its blocks.
            if rows.num_turns > 1:
                return None
        # The config may mean a module by either of its names.
        found = {self._layouts.layout(name) for name in stored_names(module)}
        layout = found.pop() if len(found) == 1 else None
        return layout.kept_form if isinstance(layout, KeptLayout) else None


def _modules(pattern: str, index: int, layer: LayerSpec) -> Iterator[str]:
    """What the family calls a weight of a layer; of its experts, that of each."""
    if pattern.count("{}") == 1:
        yield pattern.format(index)
    elif isinstance(layer.mlp, MoeMlpSpec):
        yield from (pattern.format(index, expert) for expert in range(layer.mlp.num_experts))
