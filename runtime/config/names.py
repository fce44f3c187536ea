"""What engines and services may be called. Pure."""

import re

from raydix.errors import ConfigError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_ODD = re.compile(r"[^A-Za-z0-9._-]")
_NUMBER = re.compile(r"/[0-9]+")
NAMES_ARE = "up to 100 letters, digits, '.', '_' and '-', of which the first is a letter or a digit"


def check_name(name: str, subject: str) -> None:
    """Raise ConfigError unless an engine or a service may be called so.

    subject: what has the name, as the user has written it, such as `--name`.
    """
    if _NAME.fullmatch(name) is None:
        raise ConfigError(f"{subject} is {name!r:.120}; expected {NAMES_ARE}.")


def is_engine_name(name: str) -> bool:
    """Whether an engine may have this name: its own, or its service's and a number of it."""
    service, mark, number = name.partition("/")
    is_numbered = not mark or _NUMBER.fullmatch(mark + number) is not None
    return is_numbered and _NAME.fullmatch(service) is not None


def name_part(text: str) -> str:
    """Any text, such as a model's name, as part of a name."""
    return _ODD.sub("-", text)
