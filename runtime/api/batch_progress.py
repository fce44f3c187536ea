"""How far a batch is, on a terminal."""

import contextlib
import time
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from raydix.runtime.api.outputs import RequestOutput

OnOutput = Callable[[RequestOutput], None]


@contextlib.contextmanager
def batch_progress(
    num_prompts: int, console: Console, clock: Callable[[], float] = time.monotonic
) -> Iterator[OnOutput]:
    """Show how many prompts are answered, and tokens per second; yields what is told of answers.

    Nothing is shown where the console is no terminal, nor for a single prompt.
    """
    if num_prompts < 2 or not console.is_terminal:
        yield _ignore
        return

    columns = (
        *(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()),
        *(TextColumn("{task.fields[rate]}"), TimeElapsedColumn(), TimeRemainingColumn()),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("prompts", total=num_prompts, rate="")
        began_s = clock()
        num_tokens = 0

        def note(output: RequestOutput) -> None:
            nonlocal num_tokens
            num_tokens += output.metrics.num_output_tokens
            seconds = max(clock() - began_s, 1e-9)
            progress.update(task, advance=1, rate=f"{num_tokens / seconds:,.0f} tokens/s")

        yield note


def _ignore(_: RequestOutput) -> None:
    """Do nothing: nobody watches the batch."""
