"""The synchronous engine handle, for scripts and batch jobs."""

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Coroutine, Iterable, Mapping, Sequence, Set
from dataclasses import replace
from numbers import Integral
from pathlib import Path
from typing import Any, Self, TypeVar

from rich.console import Console

from raydix.errors import BadRequest, Cancelled, EngineDead, Overloaded
from raydix.runtime.api.batch import Open, answer_batch, results_of
from raydix.runtime.api.batch_progress import batch_progress
from raydix.runtime.api.client import AsyncLLM
from raydix.runtime.api.engine_start import UNDO_S
from raydix.runtime.api.outputs import RequestOutput
from raydix.runtime.api.pins import PinnedPrompt
from raydix.runtime.api.prompts import Prompt
from raydix.runtime.api.sampling_params import OutputKind, SamplingParams
from raydix.runtime.config.engine import EngineConfig

MAX_PREFETCHES_IN_FLIGHT = 16
"""The most prefetches of one call that are with the engine at a time."""

T = TypeVar("T")
Params = SamplingParams | Mapping[str, Any]

_LISTEN_S = 0.2
"""The interval at which a call that waits looks for signals."""


class LLM:
    """An engine of one's own, with blocking calls; its asyncio loop runs on a thread.

    Ends with `shutdown`, with its `with` block, or with the process. May be used from several
    threads.
    """

    def __init__(
        self,
        source: str | Path | Mapping[str, Any] | EngineConfig | None = None,
        *,
        name: str | None = None,
        address: str | None = None,
        **sections: Any,
    ) -> None:
        """Start an engine; the arguments and errors are those of `AsyncLLM.start`."""
        self._loop = asyncio.new_event_loop()
        self._is_stopped = asyncio.Event()
        # A signal's handler may come while its own thread has it.
        self._entrance = threading.RLock()
        self._is_open = True
        self._thread = threading.Thread(target=self._run_loop, name="raydix-llm", daemon=True)
        self._thread.start()

        self._starting: asyncio.Task[Any] | None = None
        try:
            self._engine = self._wait(
                self._start(AsyncLLM.start(source, name=name, address=address, **sections))
            )
        except BaseException:
            self._take_back()
            raise

    def generate(
        self,
        prompts: Prompt | Iterable[Prompt],
        sampling_params: Params | Sequence[Params] | None = None,
        *,
        use_tqdm: bool = True,
        **options: Any,
    ) -> list[RequestOutput]:
        """Finished outputs of one prompt or of several, in the order of the prompts.

        prompts: a str, token ids, a dict, or a list or generator of those. sampling_params: one for
        all, or one per prompt. use_tqdm: vLLM's name for a progress bar, which is shown on a
        terminal alone, and for several prompts. options: keyword arguments of `AsyncLLM.generate`,
        the same for all. A full engine is waited for.

        A prompt that fails does not keep the others from being answered: then BatchFailed is
        raised, which names it and has the other outputs. Of a single prompt its own error is
        raised, and EngineDead at once.
        """
        listed = _list_prompts(prompts)
        params = _list_params(sampling_params, len(listed))
        return self._answer(
            lambda index: self._engine.generate(listed[index], params[index], **options),
            params,
            use_tqdm=use_tqdm,
        )

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]] | Sequence[Sequence[Mapping[str, Any]]],
        sampling_params: Params | Sequence[Params] | None = None,
        *,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        use_tqdm: bool = True,
        **options: Any,
    ) -> list[RequestOutput]:
        """Answers to one conversation or a list of them, as by `generate`; see `AsyncLLM.chat`."""
        # What is no list at all is one conversation, which is refused as such.
        is_list = isinstance(messages, Sequence) and not isinstance(messages, str | bytes)
        is_one = not is_list or all(isinstance(each, Mapping) for each in messages)
        conversations: Any = [messages] if is_one else messages
        params = _list_params(sampling_params, len(conversations))
        return self._answer(
            lambda index: self._engine.chat(
                conversations[index],
                params[index],
                chat_template_kwargs=chat_template_kwargs,
                **options,
            ),
            params,
            use_tqdm=use_tqdm,
        )

    def prefetch(
        self, prompts: Prompt | Iterable[Prompt], *, cache_salt: str | None = None
    ) -> list[dict[str, int]]:
        """Bring to L2 what L3 has of a prompt or of several; see `AsyncLLM.prefetch`.

        One that fails does not keep the others from it; then BatchFailed is raised, as by
        `generate`.
        """
        return self._wait(prefetch_all(self._engine, _list_prompts(prompts), cache_salt))

    def stats(self) -> dict[str, Any]:
        """Counters and gauges of the engine."""
        return self._wait(self._engine.stats())

    def flush(self, l3: bool = False) -> dict[str, Any]:
        """Drop cached pages; see `AsyncLLM.flush`."""
        return self._wait(self._engine.flush(l3))

    def attach_storage(self, section: Mapping[str, Any]) -> dict[str, Any]:
        """Use another L3 backend from now on; see `AsyncLLM.attach_storage`."""
        return self._wait(self._engine.attach_storage(section))

    def detach_storage(self) -> dict[str, Any]:
        """Go on without L3; see `AsyncLLM.detach_storage`."""
        return self._wait(self._engine.detach_storage())

    def sleep(self, weights: bool = False) -> dict[str, Any]:
        """Give the GPUs' memory back; see `AsyncLLM.sleep`."""
        return self._wait(self._engine.sleep(weights))

    def wake(self) -> dict[str, Any]:
        """Take the GPUs' memory again; see `AsyncLLM.wake`."""
        return self._wait(self._engine.wake())

    def explain(self, request_id: str) -> dict[str, Any]:
        """Where a recent request's prompt came from; see `AsyncLLM.explain`."""
        return self._wait(self._engine.explain(request_id))

    def retain(
        self, session_id: str, retention: Mapping[str, Any], *, cache_salt: str | None = None
    ) -> None:
        """Tell what comes next of a session; see `AsyncLLM.retain`."""
        self._wait(self._engine.retain(session_id, retention, cache_salt=cache_salt))

    def pin(self, prompt: Prompt, *, keep_s: float, cache_salt: str | None = None) -> PinnedPrompt:
        """Hold a prompt's pages in L2 for a while; see `Pins.add`."""
        return self._wait(self._engine.pins.add(prompt, keep_s=keep_s, cache_salt=cache_salt))

    def unpin(self, pin_id: str) -> bool:
        """Hold a pinned prompt no more; see `Pins.release`."""
        return self._wait(self._engine.pins.release(pin_id))

    def pins(self) -> list[dict[str, Any]]:
        """The engine's pins; see `Pins.shown`."""
        return self._wait(self._engine.pins.shown())

    def shutdown(self) -> None:
        """Stop the engine and the thread; calls of other threads raise Cancelled.

        May be called twice, also at the same time.
        """
        if not self._is_open:
            return
        try:
            # Another call of this may end first, and the loop with it.
            with contextlib.suppress(Cancelled):
                self._wait(self._engine.shutdown())
        finally:
            self._stop_loop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    def _answer(
        self, open_stream: Open, params: Sequence[SamplingParams], *, use_tqdm: bool
    ) -> list[RequestOutput]:
        """`params`: of each prompt."""
        number, num_samples = len(params), max((each.n for each in params), default=1)
        with batch_progress(number if use_tqdm else 0, Console(stderr=True)) as on_output:
            return self._wait(answer_batch(open_stream, number, on_output, num_samples))

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        with self._entrance:
            if not self._is_open:
                work.close()
                raise EngineDead("This LLM was shut down. Make a new one.")
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            # Another thread may take a signal, and that wakes nobody here.
            while not future.done():
                concurrent.futures.wait([future], _LISTEN_S)
            return future.result()
        except concurrent.futures.CancelledError:
            raise Cancelled("This LLM was shut down while the call was under way.") from None
        except BaseException:
            # An interrupt (Ctrl-C) leaves the coroutine running: cancelling it aborts its requests.
            future.cancel()
            raise

    def _run_loop(self) -> None:
        """Run the loop. At its end the runner cancels what is under way, and waiters see that."""
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._is_stopped.wait())

    async def _start(self, start: Coroutine[Any, Any, AsyncLLM]) -> AsyncLLM:
        self._starting = asyncio.current_task()
        return await start

    def _take_back(self) -> None:
        """Take back, on the loop, the engine of a start that was interrupted.

        Ray itself, while it is being started, cannot be interrupted: then that goes on behind the
        caller. If the process ends it waits for that, too, and a second Ctrl-C ends the wait: then
        the reaper ends whatever Ray has started.
        """
        starting = self._starting
        if starting is not None:
            self._wait(_end_of(starting, UNDO_S))
        if starting is None or starting.done():
            self._stop_loop()
        else:
            self._loop.call_soon_threadsafe(
                starting.add_done_callback, lambda _: self._is_stopped.set()
            )

    def _stop_loop(self) -> None:
        with self._entrance:
            if self._is_open:
                self._is_open = False
                # Behind all that was submitted before.
                self._loop.call_soon_threadsafe(self._is_stopped.set)
        self._thread.join()


async def prefetch_all(
    engine: AsyncLLM, prompts: Sequence[Prompt], cache_salt: str | None
) -> list[dict[str, int]]:
    """`AsyncLLM.prefetch` of each prompt, a bounded number at a time; results in their order.

    Raises what `results_of` does.
    """

    async def prefetch(index: int) -> dict[str, int]:
        while True:
            try:
                return await engine.prefetch(prompts[index], cache_salt=cache_salt)
            except Overloaded as error:
                await asyncio.sleep(error.retry_after_s)

    return await results_of(prefetch, len(prompts), MAX_PREFETCHES_IN_FLIGHT)


async def _end_of(task: asyncio.Task[Any], timeout_s: float) -> None:
    await asyncio.wait({task}, timeout=timeout_s)


def _list_prompts(prompts: Prompt | Iterable[Prompt]) -> list[Prompt]:
    """Tell one prompt from several: a str, a dict and ints are one; [] is none.

    Raises BadRequest for what is neither.
    """
    if isinstance(prompts, str | Mapping):
        return [prompts]
    if not isinstance(prompts, Iterable) or isinstance(prompts, bytes | bytearray | Set):
        raise BadRequest(
            f"prompts is a {type(prompts).__name__}; expected a prompt, or a list or generator of "
            "prompts."
        )
    listed: list[Any] = list(prompts)
    return [listed] if listed and isinstance(listed[0], Integral) else listed


def _list_params(
    params: Params | Sequence[Params] | None, num_prompts: int
) -> list[SamplingParams]:
    """One SamplingParams per prompt, each asking for the final output alone."""
    if params is None or isinstance(params, SamplingParams | Mapping):
        listed = [SamplingParams.of(params)] * num_prompts
    elif isinstance(params, Iterable):
        listed = [SamplingParams.of(each) for each in params]
    else:
        raise BadRequest(
            f"sampling_params is a {type(params).__name__}; expected SamplingParams or a dict, or "
            "a list of one for each prompt."
        )
    if len(listed) != num_prompts:
        raise BadRequest(
            f"There are {len(listed)} sampling_params for {num_prompts} prompts; "
            "expected one for each."
        )
    return [replace(each, output_kind=OutputKind.FINAL) for each in listed]
