"""The command line as a whole: its verbs, and how errors end it.

Each verb, or group of verbs, has a module of its name in this folder: its options, and what it
does. Help needs all of them, and must come at once: what is slow to import (ray, which the client
brings, torch, the storage backends) is imported in the function that needs it.
"""

import io
import os
import sys
from typing import Annotated, Any, NoReturn

import typer
from pydantic import ValidationError
from typer.core import TyperGroup

from raydix import __version__
from raydix.runtime.cli import cache, config, trace
from raydix.runtime.cli.bench import bench
from raydix.runtime.cli.dashboards import dashboards
from raydix.runtime.cli.demo import demo
from raydix.runtime.cli.doctor import doctor
from raydix.runtime.cli.endings import plain_endings
from raydix.runtime.cli.generate import generate
from raydix.runtime.cli.ingress import ingress
from raydix.runtime.cli.logs import logs
from raydix.runtime.cli.plan import plan
from raydix.runtime.cli.profile import profile
from raydix.runtime.cli.serve import serve
from raydix.runtime.cli.simulate import simulate
from raydix.runtime.cli.sleep import sleep, switch, wake
from raydix.runtime.cli.status import status, stop
from raydix.runtime.cli.warm_up import warm_up
from raydix.runtime.config.values import shortened

_MAX_VALUE_CHARS = 80


class _Verbs(TyperGroup):
    """Verbs whose options are refused with the value that is wrong, too.

    Typer checks values by pydantic, whose lines say what was expected alone.
    """

    def invoke(self, ctx: typer.Context) -> Any:  # type: ignore[override]
        """Parse the options of a verb, and do what it does."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            if not isinstance(error.__cause__, ValidationError):
                raise
            [first, *_] = error.__cause__.errors()
            raise typer.BadParameter(
                f"{error.message} (it is {shortened(first['input'], _MAX_VALUE_CHARS)})",
                ctx=error.ctx,
                param=error.param,
                param_hint=error.param_hint,
            ) from error


app = typer.Typer(
    cls=_Verbs,
    help="Serve large language models on Ray actors, "
    "with computed prefixes kept in GPU, host and storage tiers.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        print(__version__)
        raise typer.Exit


Version = Annotated[
    bool,
    typer.Option("--version", callback=_print_version, is_eager=True, help="Print it and end."),
]


@app.callback()
def before_every_verb(version: Version = False) -> None:
    """Options of `raydix` itself."""


for verb in (
    serve,
    ingress,
    status,
    stop,
    logs,
    sleep,
    wake,
    switch,
    generate,
    demo,
    bench,
    doctor,
    plan,
    profile,
    simulate,
    dashboards,
    warm_up,
):
    app.command()(verb)
app.add_typer(cache.app, name="cache")
app.add_typer(config.app, name="config")
app.add_typer(trace.app, name="trace")


def main() -> NoReturn:
    """Run the command line and exit; errors end it as `plain_endings` says."""
    # Ray prints a paragraph for each worker that dies. The Supervisor says the same in a line.
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")
    # Models say everything; what a locale other than UTF-8 has no bytes for is written as \u4e2d.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    with plain_endings():
        app()
    sys.exit(0)
