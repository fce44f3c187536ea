"""Options that several verbs share, and the configuration that they stand for."""

from typing import Annotated, Any

import typer

from raydix.errors import ConfigError
from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.config.loading import apply_set, load_config
from raydix.runtime.config.names import check_name
from raydix.runtime.config.values import parse_size

METRICS_PORT = 9477
"""The metrics port of `raydix serve`, unless the configuration names another one."""

Source = Annotated[
    str | None,
    typer.Argument(
        help="A YAML configuration, a checkpoint folder, or ORG/NAME on the Hub.",
        show_default=False,
    ),
]
Sources = Annotated[
    list[str] | None,
    typer.Argument(
        help="A YAML configuration, a checkpoint folder, or ORG/NAME on the Hub. Of several each "
        "is a service of its own, NAME-MODEL, and HTTP serves all of them by their models' names.",
        metavar="[SOURCE]...",
        show_default=False,
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set", help="Set one key: cache.l1.num_pages=64. Repeatable.", metavar="KEY=VALUE"
    ),
]


def _checked_name(name: str) -> str:
    check_name(name, "--name")
    return name


Name = Annotated[
    str,
    typer.Option(
        "--name",
        callback=_checked_name,
        help="Name of the engine or service that is started: letters, digits, '.', '_' and '-'.",
    ),
]
Address = Annotated[
    str | None,
    typer.Option(help="Address of the Ray cluster. Default: the one at hand, else a private one."),
]
OptionalConnect = Annotated[
    str | None,
    typer.Option(
        "--connect",
        help="Use the running engine of this name, or one that listens on another host.",
        metavar="NAME[@HOST:PORT]",
    ),
]
Connect = Annotated[
    str,
    typer.Option(
        "--connect",
        help="Name of the running engine, and where it listens if that is another host.",
        metavar="NAME[@HOST:PORT]",
    ),
]
CacheSalt = Annotated[
    str | None,
    typer.Option("--cache-salt", help="Share cached prefixes only with requests of this salt."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON alone on standard output.")]

Lazy = Annotated[
    bool,
    typer.Option("--lazy", help="Go on if L3 does not answer, and use it once it does."),
]

PROMPT_FILE_HELP = (
    "A prompt per line; in .jsonl files text, token ids, or an object with `prompt`, "
    "`prompt_token_ids`, or `messages` and perhaps `tools`."
)


def sections_of(settings: list[str] | None) -> dict[str, Any]:
    """The sections that all `--set` together make; of two for one key the later one counts."""
    sections: dict[str, Any] = {}
    for assignment in settings or []:
        sections = apply_set(sections, assignment)
    return sections


def lazy_storage(lazy: bool, sections: dict[str, Any]) -> dict[str, Any]:
    """The sections with what `--lazy` says laid over them."""
    return apply_set(sections, "cache.l3.lazy=true") if lazy else sections


def config_unless_connected(
    source: str | None, settings: list[str] | None, connect: str | None
) -> EngineConfig | None:
    """The configuration of the engine to start; None if a running one is used.

    Raises ConfigError for a wrong configuration, and for one that is given beside `--connect`.
    """
    if connect is None:
        return load_config(source, sections_of(settings))
    if source is not None or settings:
        raise ConfigError(
            "--connect uses a running engine as it is. Leave out the configuration and --set."
        )
    return None


def bytes_of(option: str, text: str | None) -> int | None:
    """A size that an option gives. Raises ConfigError if the option's text is no size."""
    if text is None:
        return None
    try:
        size: Any = parse_size(text)
    except ValueError as error:
        raise ConfigError(f"{option} is {text!r}; {error}.") from None
    return int(size)
