"""Weights as floats: what most checkpoints hold."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from raydix.runtime.model.formats.definition import WeightFormat


@dataclass(frozen=True, slots=True)
class _PlainModules:
    """`ModuleLayouts` without a quantised module."""

    description: str = "floats"
    named: frozenset[str] = frozenset()
    unused_parts: frozenset[str] = frozenset()

    def layout(self, module: str) -> None:
        """None: the config says of no module that it is quantised."""


def _read(config: Mapping[str, Any]) -> _PlainModules:
    return _PlainModules()


PLAIN = WeightFormat(quant_method=None, summary="float32, bfloat16 or float16", read=_read)
