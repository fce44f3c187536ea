"""The kinds of GPU that are known by name, be they here or not."""

from typing import NamedTuple

from raydix.errors import ConfigError

_GIB = 1 << 30


class GpuKind(NamedTuple):
    """A kind of GPU."""

    num_bytes: int
    """What CUDA lets programs use of its memory, rounded down."""
    capability: tuple[int, int]
    """Its compute capability."""


GPUS = {
    "L4": GpuKind(22 * _GIB, (8, 9)),
    "L40S": GpuKind(44 * _GIB, (8, 9)),
    "A100 40GB": GpuKind(39 * _GIB, (8, 0)),
    "A100 80GB": GpuKind(79 * _GIB, (8, 0)),
    "H100": GpuKind(79 * _GIB, (9, 0)),
    "H200": GpuKind(139 * _GIB, (9, 0)),
    "B200": GpuKind(178 * _GIB, (10, 0)),
}


def named_gpu(name: str) -> GpuKind:
    """The kind of GPU of that name. Raises ConfigError if there is none."""
    kinds = {each.casefold(): kind for each, kind in GPUS.items()}
    if name.casefold() not in kinds:
        raise ConfigError(f"--gpu is {name!r}; expected one of {', '.join(GPUS)}.")
    return kinds[name.casefold()]
