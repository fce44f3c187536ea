"""`raydix warm-up`: compile a model's kernels ahead, for images and shared folders to carry."""

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from raydix.runtime.cli.options import Settings, Source, sections_of
from raydix.runtime.config.loading import load_config

Out = Annotated[
    Path,
    typer.Option("--out", help="Folder for compiled kernels, as `model.kernels`.", metavar="DIR"),
]
Gpu = Annotated[
    str | None,
    typer.Option(
        "--gpu",
        help="Compile for a GPU that is not here: compute capability and multiprocessors, such as "
        "9.0:132 for H100 and H200.",
        metavar="CAPABILITY:MULTIPROCESSORS",
    ),
]


def warm_up(out: Out, source: Source = None, settings: Settings = None, gpu: Gpu = None) -> None:
    """Compile the kernels that an engine of this configuration launches, into a folder.

    Engines with `model.kernels` set to that folder start without compiling any. It may hold those
    of many models, GPUs and versions.
    """
    from raydix.runtime.actors.kernel_build import describe, write_kernels

    config = load_config(source, sections_of(settings))
    with tempfile.TemporaryDirectory(prefix="raydix-warm-up-") as cache:
        built, folder = write_kernels(config, out, Path(cache), gpu)
    print(describe(built))
    print(f"written to {folder}; set model.kernels to {out}")
