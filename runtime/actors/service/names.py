"""What the engines of a service are called: `NAME/1`, `NAME/2` and so on. Pure."""

from collections.abc import Iterable

_MARK = "/"


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
