"""Make a checked configuration of a file, a folder, a dict or `--set`."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from raydix.errors import ConfigError
from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.config.errors import describe
from raydix.runtime.config.paths import (
    HubName,
    require_absolute_l3,
    resolve_l3,
    resolve_model_path,
    resolve_path,
)
from raydix.runtime.config.values import WITH_SECRETS, without_passwords


class _Loader(yaml.SafeLoader):
    """Reads 1e9 as a number, as YAML 1.2 and JSON do: YAML 1.1 wants 1.0e+9."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)[eE][-+]?[0-9]+$"),
    list("-+.0123456789"),
)
_WEIGHT_SUFFIXES = frozenset({".gguf", ".safetensors", ".bin", ".pt", ".pth"})


def load_config(
    source: str | Path | Mapping[str, Any] | EngineConfig | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> EngineConfig:
    """Read and check a configuration.

    source: a YAML file, a checkpoint folder or a name on the Hub (which become `model.path`), a
    dict, or None if `overrides` say all. overrides: sections laid over the source, key by key.
    Relative paths, wherever they are written, start at this process's working directory; the
    configuration that is returned means the same in every other one.
    Raises ConfigError that names every wrong key with its value, and for an unknown key the
    nearest valid one.
    """
    values = _with_device_defaults(_merge(_read(source), overrides or {}))
    # Before paths are resolved, for messages show what was written.
    _check(values)
    return _check(_resolved(values, Path.cwd()))


def _check(values: Mapping[str, Any]) -> EngineConfig:
    try:
        return EngineConfig.model_validate(values)
    except ValidationError as error:
        raise ConfigError(describe(error, EngineConfig)) from None


def _resolved(values: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Checked values whose paths mean what they mean in `folder`."""
    model = values["model"]
    resolved = _merge(values, {"model": {"path": resolve_model_path(model["path"], folder)}})
    if model.get("kernels") is not None:
        kernels = resolve_path(model["kernels"], folder)
        resolved = _merge(resolved, {"model": {"kernels": kernels}})
    l3 = values.get("cache", {}).get("l3")
    if l3 is None:
        return resolved
    return _merge(resolved, {"cache": {"l3": resolve_l3(l3, folder)}})


def replace_l3(config: EngineConfig, section: Mapping[str, Any] | None) -> EngineConfig:
    """The configuration with another `cache.l3`, or none.

    Raises ConfigError as `load_config`, and for a relative path: nobody knows to whom it means
    what.
    """
    values = config.model_dump(exclude_unset=True, context=WITH_SECRETS)
    changed = _check(values | {"cache": {**values.get("cache", {}), "l3": section}})
    require_absolute_l3(section or {})
    return changed


def replace_model_path(config: EngineConfig, path: str) -> EngineConfig:
    """The configuration with another `model.path`, which is resolved."""
    model = config.model.model_copy(update={"path": path})
    return config.model_copy(update={"model": model})


def apply_set(values: Mapping[str, Any], assignment: str) -> dict[str, Any]:
    """`values` with `cache.l1.num_pages=64` laid over them; the value is read as YAML."""
    key, equals, text = assignment.partition("=")
    shown = without_passwords(assignment)
    if not equals or not all(key.split(".")):
        raise ConfigError(f"--set {shown}: expected KEY=VALUE, such as cache.l1.num_pages=64.")
    try:
        value = yaml.load(text, _Loader)
        _require_unique_keys(yaml.compose(text, _Loader), f"--set {shown}")
    except (yaml.YAMLError, RecursionError):
        problem = f"{without_passwords(repr(text))} is not a YAML value."
        raise ConfigError(f"--set {shown}: {problem}") from None

    for part in reversed(key.split(".")):
        value = {part: value}
    return _merge(values, value)


def _read(source: str | Path | Mapping[str, Any] | EngineConfig | None) -> dict[str, Any]:
    if source is None:
        return {}
    if isinstance(source, EngineConfig):
        return source.model_dump(exclude_unset=True, context=WITH_SECRETS)
    if isinstance(source, Mapping):
        return dict(source)
    if not isinstance(source, str | Path):
        raise ConfigError(
            f"The configuration is {source!r:.80}; expected a YAML file or a checkpoint folder by "
            "its path, a name on the Hugging Face Hub, a dict of sections, or an EngineConfig."
        )

    if source == "":
        raise ConfigError(
            "The configuration's path is empty; expected a YAML file or a checkpoint folder. Is a "
            "variable of the shell not set?"
        )

    path = Path(source)
    if path.is_dir():
        return {"model": {"path": str(path)}}
    if not path.is_file():
        if HubName.parse(str(source)) is not None:
            return {"model": {"path": str(source)}}
        raise ConfigError(
            f"{source} is neither a YAML file nor a checkpoint folder in {Path.cwd()}, nor a name "
            "on the Hugging Face Hub such as Qwen/Qwen3-0.6B."
        )
    if path.suffix.lower() in _WEIGHT_SUFFIXES:
        raise ConfigError(
            f"{source} is a file of weights; expected a YAML file, or a checkpoint's folder with "
            "config.json and safetensors. Give the folder; weights in GGUF are not read."
        )
    return _read_yaml(path)


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
        _require_unique_keys(yaml.compose(text, _Loader), str(path))
        values = yaml.load(text, _Loader)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except RecursionError:
        raise ConfigError(
            f"{path} holds itself or is nested too deeply; expected sections such as model and "
            "cache. Write values out where an anchor (&) refers to what it is within."
        ) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from None

    if values is None:
        raise ConfigError(f"{path} is empty; expected sections such as model and cache.")
    if not isinstance(values, dict):
        raise ConfigError(
            f"{path} holds {type(values).__name__}; expected sections such as model and cache."
        )
    return values


def _require_unique_keys(node: yaml.Node | None, source: str) -> None:
    """Raise ConfigError if a key is there twice: YAML would let the last one win in silence."""
    if not isinstance(node, yaml.MappingNode):
        return
    seen: set[str] = set()
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise ConfigError(
                f"{source} has a list or a mapping for a key in line {key.start_mark.line + 1}; "
                "expected a name. Is it a template that was not filled in?"
            )
        if key.value in seen:
            raise ConfigError(
                f"{source} has the key {key.value} twice, again in line {key.start_mark.line + 1}."
            )
        seen.add(key.value)
        _require_unique_keys(value, source)


def _merge(lower: Mapping[str, Any], upper: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of `lower` under `upper`: sections are merged key by key, all else is replaced."""
    merged = dict(lower)
    for key, value in upper.items():
        below = merged.get(key)
        if isinstance(value, Mapping):
            merged[key] = _merge(below if isinstance(below, Mapping) else {}, value)
        else:
            merged[key] = value
    return merged


def _with_device_defaults(values: dict[str, Any]) -> dict[str, Any]:
    """Fill in what depends on the device, so that the checked configuration says everything."""
    model, cache = values.get("model"), values.get("cache", {})
    if not isinstance(model, Mapping) or not isinstance(cache, Mapping):
        return values  # wrong, as the check will say

    defaults: dict[str, Any] = {"cache": {}}
    l1_size: dict[str, Any] = {"num_pages": 1024}
    if model.get("device", "cpu") == "cuda":
        defaults = {"model": {"dtype": "bfloat16"}, "cache": {"page_size": 64, "load": "auto"}}
        l1_size = {"memory_fraction": 0.85}

    # Either key gives L1 its size: a default beside the other one would contradict it.
    l1 = cache.get("l1", {})
    if isinstance(l1, Mapping) and all(
        l1.get(key) is None for key in ("num_pages", "memory_fraction")
    ):
        defaults["cache"]["l1"] = l1_size
    return _merge(defaults, values)
