"""No secret is part of what is shown of the object that holds it, and so of no log or error."""

import importlib
import pkgutil
import re
from collections.abc import Iterator
from dataclasses import Field, fields, is_dataclass
from typing import Any

import raydix.runtime

SECRET = re.compile(r"(^|_)(secret|password|salt|ticket)$")
"""The names of what nobody may read in passing; a secret under another name goes by this one."""


def held_secrets() -> Iterator[tuple[str, Field[Any]]]:
    """Every field of every dataclass of the package whose name says that it is secret."""
    for found in pkgutil.walk_packages(raydix.runtime.__path__, "raydix.runtime."):
        try:
            module = importlib.import_module(found.name)
        except ImportError:
            # It wraps a library that is not installed.
            continue
        for held in vars(module).values():
            if isinstance(held, type) and is_dataclass(held) and held.__module__ == found.name:
                for each in fields(held):
                    if SECRET.search(each.name) and each.type is not int:
                        yield f"{found.name}.{held.__name__}.{each.name}", each


def test_no_secret_is_shown_with_what_holds_it() -> None:
    secrets = dict(held_secrets())
    assert len(secrets) > 15, "the search finds them"
    assert [name for name, each in secrets.items() if each.repr] == []
