"""What the engines of a service are called: `NAME/1`, `NAME/2` and so on. Pure."""

from collections.abc import Iterable

from raydix.errors import ConfigError

_MARK = "/"


def check_service_name(name: str) -> None:
    """Raise ConfigError unless engines can be called after a service of this name."""
    if _MARK in name:
        raise ConfigError(
            f"--name is {name}; the engines of a service are called NAME{_MARK}1, NAME{_MARK}2 and "
            f"so on, so expected is a name without {_MARK}."
        )


def engine_name(service: str, number: int) -> str:
    """The name of the engine that a service has started as its `number`-th."""
    return f"{service}{_MARK}{number}"


def number_in(service: str, engine: str) -> int | None:
    """Which engine of this service it is; None if it is no engine of it."""
    name, mark, number = engine.rpartition(_MARK)
    is_one = bool(mark) and name == service and number.isascii() and number.isdecimal()
    return int(number) if is_one else None


def next_number(service: str, engines: Iterable[str]) -> int:
    """A number that none of these engines has, larger than those of all of the service."""
    numbers = (number_in(service, each) for each in engines)
    return 1 + max((number for number in numbers if number is not None), default=0)
