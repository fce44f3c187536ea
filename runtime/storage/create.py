"""From configuration to a backend."""

from collections.abc import Mapping
from pathlib import Path

from raydix.errors import ConfigError
from raydix.runtime.storage.backend import StorageBackend
from raydix.runtime.storage.fake import FakeBackend, Faults
from raydix.runtime.storage.file import FileBackend


def create_backend(config: Mapping[str, object]) -> StorageBackend:
    """The backend that section `cache.l3` describes.

    `backend: file` takes `path` and `max_bytes`; `backend: fake` takes `max_bytes` and the fields of `Faults`.
    Raises ConfigError for anything else.
    """
    options = {name: value for name, value in config.items() if name != "backend" and value is not None}
    kind = config.get("backend")
    max_bytes = options.pop("max_bytes", None)
    if max_bytes is not None and not isinstance(max_bytes, int):
        raise ConfigError(f"cache.l3.max_bytes is {max_bytes!r}; expected a number of bytes")
    match kind:
        case "file":
            path = options.pop("path", None)
            if not isinstance(path, str | Path):
                raise ConfigError(f"cache.l3.path is {path!r}; expected a folder for backend `file`")
            _refuse_unknown(options, "path, max_bytes")
            return FileBackend(Path(path), max_bytes)
        case "fake":
            numbers = {name: options.pop(name) for name in list(options) if name in Faults.__dataclass_fields__}
            _refuse_unknown(options, ", ".join(("max_bytes", *Faults.__dataclass_fields__)))
            return FakeBackend(max_bytes, _make_faults(numbers))
        case _:
            raise ConfigError(f"cache.l3.backend is {kind!r}; expected file or fake")


def _make_faults(numbers: Mapping[str, object]) -> Faults:
    for name, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ConfigError(f"cache.l3.{name} is {value!r}; expected a number")
    return Faults(**numbers)  # type: ignore[arg-type]


def _refuse_unknown(options: Mapping[str, object], known: str) -> None:
    if options:
        raise ConfigError(f"cache.l3 has unknown options {', '.join(sorted(options))}; expected {known}")
