"""How the tensors of a quantised module make its weight: what each file of layouts implements.

Of a tensor `model.layers.0.mlp.up_proj.weight_scale` the module is `model.layers.0.mlp.up_proj`,
its part `.weight_scale`. A layout that fits knows every part that its module may have.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor

FLOAT_DTYPES = ("F32", "BF16", "F16")
"""What is stored so is a weight as it is, in the words of safetensors."""
Shape = tuple[int, ...]


class Use(Enum):
    """What a part is to whoever restores the weight."""

    NEEDED = "needed"
    IF_STORED = "if stored"
    """Taken where a module has it."""
    UNUSED = "unused"
    """It may be stored, and is left aside: what activations are scaled by, say."""


@dataclass(frozen=True, slots=True)
class Part:
    """One of a module's tensors."""

    dtypes: tuple[str, ...]
    """What it may be stored as, in the words of safetensors."""
    use: Use = Use.NEEDED
    num_dimensions: int | None = None
    """None: those that the shapes of other parts ask for."""


UNUSED_SCALE = Part(FLOAT_DTYPES, Use.UNUSED)
"""A scale of activations, or of keys and values, which are computed as floats."""


class Layout(Protocol):
    """How one module is stored. A value: equal layouts restore equal tensors alike."""

    @property
    def parts(self) -> Mapping[str, Part]:
        """Every part that a module may have, but for biases, by the end of the name."""
        ...

    def shapes(self, stored: Mapping[str, Shape]) -> Mapping[str, tuple[Shape, ...]]:
        """The shapes that parts may have, by those that are stored; parts without any are free."""
        ...

    def restore(self, parts: Mapping[str, "Tensor"]) -> Iterator[tuple[str, "Tensor"]]:
        """Float32 tensors, by the end of their names, on the device that the parts are on.

        `parts`: those that are used, on the device `meta` too, where only shapes count. Raises
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


KV_SCALES = frozenset({".k_scale", ".v_scale", ".q_scale", ".kv_scale", ".output_scale"})
"""Scales by which keys and values may be kept as 8 bits; pages of ours hold them as computed."""
