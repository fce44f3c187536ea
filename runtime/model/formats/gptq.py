"""GPTQ, as AutoGPTQ and GPTQModel write it, of both versions."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from raydix.errors import CheckpointError
from raydix.runtime.model.formats.definition import WeightFormat
from raydix.runtime.model.formats.layout import UNUSED_SCALES
from raydix.runtime.model.formats.module_names import read_group_size
from raydix.runtime.model.formats.word_groups import GptqLayout

_VERSIONS = ("gptq", "gptq_v2")
_BITS = (2, 4, 8)
_NOT, _ALSO = "-:", "+:"
_REMEDY = "Fetch config.json again, or a checkpoint in another format."


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rule:
    """What modules are whose name fits a pattern from its beginning."""

    pattern: str
    layout: GptqLayout | None
    """None: they stay floats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _GptqModules:
    """`ModuleLayouts`: the first rule that fits, and one layout for all others."""

    rules: tuple[_Rule, ...]
    others: GptqLayout
    named: frozenset[str] = frozenset()
    unused_parts: frozenset[str] = UNUSED_SCALES

    @property
    def description(self) -> str:
        """Bits and groups of most modules."""
        size = "all" if self.others.group is None else str(self.others.group)
        return f"{self.others.bits} bits in groups of {size} inputs"

    def layout(self, module: str) -> GptqLayout | None:
        """Whatever a module is, its tensors tell whether it is quantised."""
        for rule in self.rules:
            if re.match(rule.pattern, module):
                return rule.layout
        return self.others


def _read(config: Mapping[str, Any]) -> _GptqModules:
    dynamic = config.get("dynamic") or {}
    if not isinstance(dynamic, Mapping):
        raise CheckpointError(
            f"quantization_config.dynamic is {dynamic!r}; expected an object of patterns. {_REMEDY}"
        )
    return _GptqModules(
        rules=tuple(_read_rule(config, pattern, each) for pattern, each in dynamic.items()),
        others=_read_layout(config),
    )


def _read_rule(config: Mapping[str, Any], name: str, changes: object) -> _Rule:
    pattern = name.removeprefix(_NOT).removeprefix(_ALSO)
    try:
        re.compile(pattern)
    except re.error as error:
        raise CheckpointError(
            f"quantization_config.dynamic has {name!r}, which is no pattern: {error}. {_REMEDY}"
        ) from error
    if name.startswith(_NOT):
        return _Rule(pattern=pattern, layout=None)
    own = changes if isinstance(changes, Mapping) else {}
    return _Rule(pattern=pattern, layout=_read_layout({**config, **own}))


def _read_layout(config: Mapping[str, Any]) -> GptqLayout:
    bits = config.get("bits")
    if not isinstance(bits, int) or bits not in _BITS:
        raise CheckpointError(
            f"quantization_config.bits is {bits!r}; supported are {', '.join(map(str, _BITS))}. "
            f"{_REMEDY}"
        )
    version = config.get("checkpoint_format") or config.get("format") or _VERSIONS[0]
    if version not in _VERSIONS or config.get("pack_dtype", "int32") != "int32":
        raise CheckpointError(
            f"quantization_config tells of checkpoint_format {version!r} and pack_dtype "
            f"{config.get('pack_dtype', 'int32')!r}; supported are {' and '.join(_VERSIONS)}, of "
            f"int32. {_REMEDY}"
        )
    return GptqLayout(
        bits=bits,
        group=read_group_size(config, "group_size"),
        is_symmetric=bool(config.get("sym", True)),
        is_less_one=version == _VERSIONS[0],
        is_in_any_order=bool(config.get("desc_act", False)),
    )


GPTQ = WeightFormat(
    quant_method="gptq",
    summary="int of 2, 4 or 8 bits with a scale and a zero point per group of inputs, of version 1 "
    "or 2",
    read=_read,
    kept="4 bits with groups in order",
)
