"""Which tensors of a checkpoint make which weights, told by their headers alone.

A module is quantised if its tensors say so; where the config says otherwise the checkpoint is
refused. Of a quantised module every tensor is used, or known as unused.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from raydix.errors import CheckpointError
from raydix.runtime.model.formats.kept_layout import KeptLayout
from raydix.runtime.model.formats.layout import FLOAT_DTYPES, Layout, ModuleLayouts
from raydix.runtime.model.formats.restoring import Tensors
from raydix.runtime.model.formats.stored_tensor import FETCH_BOTH, StoredTensor

if TYPE_CHECKING:
    from torch import Tensor

_WEIGHT, _BIAS = ".weight", "bias"
_STACKED_PARTS = ("_blocks", "_scales")
"""What names of stacked tensors end with, if they are bytes; floats may be called so, too."""
_QUANTISED_PARTS = frozenset(
    {
        *(".weight_scale", ".weight_scale_inv", ".weight_scale_2", ".weight_global_scale"),
        *(".weight_packed", ".weight_shape", ".weight_zero_point", ".weight_g_idx"),
        *(".qweight", ".qzeros", ".scales", ".g_idx"),
    }
)
"""Parts that modules have only if they are quantised."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantisedModule:
    """A module whose weight is to be restored."""

    name: str
    layout: Layout
    parts: frozenset[str]
    """The parts that are stored of it, but for a bias."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestorePlan:
    """What to make of a checkpoint's tensors: a restorer, which holds one module at a time."""

    module_by_tensor: Mapping[str, QuantisedModule]
    """The module of each tensor that is used, by the tensor's name."""
    unused: frozenset[str]
    """Names of tensors that are left aside."""

    def arrange(self, stored: Iterable[StoredTensor]) -> list[StoredTensor]:
        """The tensors that are read, those of a module one after another."""
        together: dict[str, list[StoredTensor]] = {}
        for each in stored:
            if each.name not in self.unused:
                module = self.module_by_tensor.get(each.name)
                together.setdefault(each.name if module is None else module.name, []).append(each)
        return [each for group in together.values() for each in group]

    def restore(self, tensors: Tensors, is_kept: Callable[[str], bool]) -> Tensors:
        """Make floats of what is quantised; pass on all else, but for what is unused.

        `is_kept`: whether a module stays as it is stored, with parts as of `kept_names`. Raises
        CheckpointError if the content of tensors makes no weight.
        """
        held: dict[str, dict[str, Tensor]] = {}
        for name, tensor in tensors:
            if name in self.unused:
                continue
            module = self.module_by_tensor.get(name)
            if module is None:
                yield name, tensor
                continue

            parts = held.setdefault(module.name, {})
            parts[name.removeprefix(module.name)] = tensor
            if parts.keys() == module.parts:
                yield from _restore_module(
                    module, held.pop(module.name), is_kept=is_kept(module.name)
                )
        assert not held, f"parts of {min(held)} were planned, and never came"


def _restore_module(
    module: QuantisedModule, parts: "Mapping[str, Tensor]", *, is_kept: bool
) -> Tensors:
    layout = module.layout
    try:
        made = (
            layout.keep(parts)
            if is_kept and isinstance(layout, KeptLayout)
            else layout.restore(parts)
        )
        for part, restored in made:
            yield module.name + part, restored
    except ValueError as error:
        raise CheckpointError(f"The weight of {module.name} {error}. {FETCH_BOTH}") from error


@dataclass(slots=True)
class _Module:
    """What is stored of a module, by part."""

    name: str
    stored: dict[str, StoredTensor] = field(default_factory=dict)

    @property
    def is_quantised(self) -> bool:
        """Whether its tensors say so."""
        weight = self.stored.get(_WEIGHT)
        is_packed = weight is not None and weight.dtype not in FLOAT_DTYPES
        return is_packed or any(map(_is_quantised, self.stored.items()))


def _is_quantised(item: tuple[str, StoredTensor]) -> bool:
    part, stored = item
    return (part in _STACKED_PARTS and stored.dtype == "U8") or part in _QUANTISED_PARTS


def plan_restoring(
    stored: Iterable[StoredTensor], layouts: ModuleLayouts, description: str
) -> RestorePlan:
    """Find the layout of each module. Raises CheckpointError where tensors and config disagree.

    description: what the config tells, for people.
    """
    modules: dict[str, QuantisedModule] = {}
    unused: set[str] = set()
    for module in _modules(stored):
        beside = layouts.unused_parts & module.stored.keys()
        unused |= {module.stored.pop(part).name for part in beside}
        if not module.is_quantised:
            if module.name in layouts.named and _WEIGHT in module.stored:
                raise CheckpointError(
                    f"Tensor {module.name}{_WEIGHT} is {module.stored[_WEIGHT].dtype}, but "
                    f"config.json names {module.name} among what is quantised. {FETCH_BOTH}"
                )
            continue

        planned = _plan_module(module, layouts.layout(module.name), description)
        modules |= {module.stored[part].name: planned for part in planned.parts}
    return RestorePlan(module_by_tensor=modules, unused=frozenset(unused))


def _modules(stored: Iterable[StoredTensor]) -> Sequence[_Module]:
    found: dict[str, _Module] = {}
    for each in stored:
        name, part = _split(each.name)
        found.setdefault(name, _Module(name)).stored[part] = each
    return list(found.values())


def _split(name: str) -> tuple[str, str]:
    """The module and the part of a tensor."""
    for part in _STACKED_PARTS:
        if name.endswith(part):
            return name.removesuffix(part), part
    module, point, part = name.rpartition(".")
    return module, point + part


def _plan_module(module: _Module, layout: Layout | None, description: str) -> QuantisedModule:
    if layout is None:
        raise _unexpected(module, description)

    stored, known = module.stored, layout.parts
    missing = [part for part, each in known.items() if not each.is_optional and part not in stored]
    if missing:
        raise CheckpointError(
            f"The checkpoint has {min(each.name for each in stored.values())} without "
            f"{module.name}{missing[0]}; expected both, as config.json tells of {description}. "
            f"{FETCH_BOTH}"
        )
    for part, each in stored.items():
        if part in known:
            _require_dtype(each, known[part].dtypes, description)
            num_dimensions = known[part].num_dimensions
            if num_dimensions not in (None, len(each.shape)):
                raise _misshapen(each, f"{num_dimensions} dimensions", description)
        elif not part.endswith(_BIAS):
            raise CheckpointError(
                f"Nothing needs tensor {each.name}; of a module with {description} expected are "
                f"{', '.join(known)}. {FETCH_BOTH}"
            )

    accepted = layout.shapes({part: each.shape for part, each in stored.items()})
    for part, shapes in accepted.items():
        if part in stored and stored[part].shape not in shapes:
            expected = " or ".join(str(list(shape)) for shape in shapes)
            raise _misshapen(stored[part], expected, description)

    return QuantisedModule(
        name=module.name,
        layout=layout,
        parts=frozenset(stored.keys() & known.keys()),
    )


def _unexpected(module: _Module, description: str) -> CheckpointError:
    """A module that is quantised, though the config says that it is not."""
    weight = module.stored.get(_WEIGHT)
    if weight is not None and weight.dtype not in FLOAT_DTYPES:
        return _other_dtype(weight, FLOAT_DTYPES, description)
    marks = (item[1] for item in module.stored.items() if _is_quantised(item))
    name = min(each.name for each in marks)
    return CheckpointError(
        f"The checkpoint has {name}, but its config.json tells of {description} where "
        f"{module.name} is not quantised. {FETCH_BOTH}"
    )


def _require_dtype(stored: StoredTensor, dtypes: Sequence[str], description: str) -> None:
    if stored.dtype not in dtypes:
        raise _other_dtype(stored, dtypes, description)


def _other_dtype(stored: StoredTensor, dtypes: Sequence[str], description: str) -> CheckpointError:
    return CheckpointError(
        f"Tensor {stored.name} in {stored.path} is {stored.dtype}; expected one of "
        f"{', '.join(dtypes)}, as config.json tells of {description}. {FETCH_BOTH}"
    )


def _misshapen(stored: StoredTensor, expected: str, description: str) -> CheckpointError:
    return CheckpointError(
        f"Tensor {stored.name} in {stored.path} has shape {list(stored.shape)}; expected "
        f"{expected}, as config.json tells of {description}. {FETCH_BOTH}"
    )
