"""How the tensors of a quantised module make its weight: what each file of layouts implements.

Of a tensor `model.layers.0.mlp.up_proj.weight_scale` the module is `model.layers.0.mlp.up_proj`,
its part `.weight_scale`. A layout that fits knows every part that its module may have.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor

FLOAT_DTYPES = ("F32", "BF16", "F16")
"""What is stored so is a weight as it is, in the words of safetensors."""
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """One of a module's tensors."""

    dtypes: tuple[str, ...]
    """What it may be stored as, in the words of safetensors."""
    is_optional: bool = False
    """Whether modules may lack it."""
    num_dimensions: int | None = None
    """None: those that the shapes of other parts ask for."""


class Layout(Protocol):
    """How one module is stored. A value: equal layouts restore equal tensors alike."""

    @property
    def parts(self) -> Mapping[str, Part]:
        """Every part that makes the weight, by the end of the name."""
        ...

    def shapes(self, stored: Mapping[str, Shape]) -> Mapping[str, tuple[Shape, ...]]:
        """The shapes that parts may have, by those that are stored; parts without any are free."""
        ...

    def restore(self, parts: Mapping[str, "Tensor"]) -> Iterator[tuple[str, "Tensor"]]:
        """Float32 tensors, by the end of their names, on the device that the parts are on.

        `parts`: those that are stored, on the device `meta` too, where only shapes count. Raises
        ValueError, which says what was expected, if their content makes no weight.
        """
        ...


class ModuleLayouts(Protocol):
    """What a checkpoint's config tells of its modules. A value that other processes can read."""

    @property
    def description(self) -> str:
        """What the config tells in a few words, for people."""
        ...

    @property
    def named(self) -> frozenset[str]:
        """Modules that the config says by name are quantised."""
        ...

    @property
    def unused_parts(self) -> frozenset[str]:
        """Parts that any module may have, quantised or not, and nothing needs."""
        ...

    def layout(self, module: str) -> Layout | None:
        """How a module is stored if it is quantised; None if the config says that it is not."""
        ...


UNUSED_SCALES = frozenset(
    {
        *(".activation_scale", ".input_scale", ".input_zero_point", ".input_global_scale"),
        *(".k_scale", ".v_scale", ".q_scale", ".kv_scale", ".output_scale"),
    }
)
"""What activations would be scaled by, and keys and values in pages of 8 bits: both are floats."""
