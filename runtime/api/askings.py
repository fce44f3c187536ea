"""What a client has asked of its engines, and what comes of it: also when a link is lost."""

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from raydix.errors import Cancelled, EngineDead, RaydixError
from raydix.ids import AskingId, RequestId
from raydix.runtime.actors.links.link import Link, LinkClosed
from raydix.runtime.api.engine_line import ChooseLine, EngineLine, EngineLines
from raydix.runtime.api.live_requests import LiveRequests
from raydix.runtime.api.open_prefetches import OpenPrefetches, Taken
from raydix.runtime.api.open_requests import OpenRequest
from raydix.runtime.api.request_names import RequestNames
from raydix.runtime.api.silent_askings import SilentAskings
from raydix.runtime.api.waiting_hints import Hint, WaitingHints
from raydix.runtime.messages.client import (
    AbortRequest,
    FailureKind,
    FinishReason,
    PrefetchPrompt,
    RequestDelta,
    RequestFailure,
    StopRequest,
    SubmitRequest,
    TokenFrame,
)
from raydix.runtime.messages.routing import EngineNews
from raydix.runtime.routing.events import Route

OnLoss = Callable[[str], None]
"""Told which engine's link is lost."""


class Askings:
    """Asks engines of one model, and sorts what they answer.

    Owns: the lines to the engines, what was asked, and its names. When a link is lost, the rest of
    every output that was open over it is asked for elsewhere, or over the next link if there is no
    other. What an engine sent before it heard of an end quotes the former asking, to which nobody
    listens any more.
    """

    def __init__(self, on_loss: OnLoss | None, choice: ChooseLine) -> None:
        self._on_loss = on_loss
        self.names = RequestNames()
        self._num_askings = 0
        self._choice = choice
        self._lines = EngineLines(choice)
        self._readers: dict[str, asyncio.Task[None]] = {}
        self._live = LiveRequests()
        self._silent = SilentAskings()
        self._prefetches = OpenPrefetches()
        self._hints = WaitingHints(self.names.is_in_use)

    @property
    def is_closed(self) -> bool:
        """No link is there: no request can be sent, and those that were open wait or failed."""
        return not self._lines.up

    @property
    def has_waiting(self) -> bool:
        """Whether requests, prefetches or hints wait for a link."""
        return bool(self._waiting() or len(self._hints) or self._waiting_prefetches())

    @property
    def num_requests(self) -> int:
        """Askings that no engine has ended yet."""
        return self._lines.num_requests

    @property
    def num_taking(self) -> int:
        """How many engines take requests over a link."""
        return len(self._lines.taking)

    def has_link(self, engine: str) -> bool:
        """Whether there is a link to this engine."""
        return self._lines.has_link(engine)

    def use(self, engine: str, link: Link) -> None:
        """Ask an engine over this link, too; what waits is asked for at once."""
        reading = self._read_frames(self._lines.open(engine, link), link)
        self._readers = {name: each for name, each in self._readers.items() if not each.done()}
        self._readers[engine] = asyncio.create_task(reading, name="raydix-client-reader")
        self._ask_waiting()

    def give_up(self, error: RaydixError) -> None:
        """There will be no other link: what waits fails with `error`."""
        self._fail(self._waiting(), lambda: error)
        self._prefetches.fail(self._waiting_prefetches(), lambda: error)
        self._hints.clear()

    def route_of(self, asking: AskingId) -> Route | None:
        """Why an asking goes where it goes; None if nothing was reckoned."""
        return self._choice.route_of(asking)

    def next(self) -> AskingId:
        """The number of one more asking."""
        self._num_askings += 1
        return AskingId(self._num_askings)

    def submit(self, submission: SubmitRequest) -> None:
        """Ask for an output; without a link it waits for one, as what a lost one has left open.

        Raises EngineDead if nobody makes another link.
        """
        self._ask_or_wait(submission)

    def _ask_or_wait(self, message: SubmitRequest | PrefetchPrompt) -> None:
        try:
            self.ask(message)
        except EngineDead as error:
            self._want_link(error)
            self.names.use(message.request_id, message.asking)

    def _want_link(self, error: EngineDead) -> None:
        """Have another link made, as there is none. Raises the error if nobody makes one."""
        if self._on_loss is None:
            raise error
        for line in self._lines.down:
            self._on_loss(line.engine)

    def listen(self, request: OpenRequest) -> None:
        """Give a request that was submitted what comes of it."""
        self._live.add(request)
        if self._lines.of(request.asking) is None:
            request.at_deadline(self._expire, time.monotonic())

    async def bring(self, message: PrefetchPrompt, taken: Taken | None = None) -> RequestDelta:
        """Ask for pages, and wait for the last delta. Cancelling the task ends it.

        `taken` is completed once an engine has taken it in.
        """
        with self._prefetches.waiting(message, taken) as answer:
            try:
                self._ask_or_wait(message)
                return await answer
            finally:
                self.abort(message.request_id)

    def abort(self, request_id: str) -> None:
        """End a request; ids that are not in use are ignored.

        Its stream yields a finished output with reason `abort`.
        """
        for each, asking in self.names.askings_of(RequestId(request_id)):
            is_told = self._tell_to_end(AbortRequest(asking=asking, request_id=each))
            live = self._live.get(asking)
            if not is_told and live is not None:
                # It waits for a link: nobody answers.
                self._tell_last(live, finished=FinishReason.ABORT)

    async def close(self) -> None:
        """Close all links; open streams raise Cancelled, and Schedulers abort their requests."""
        self._on_loss = None
        closed = partial(Cancelled, "The client was closed while the request was running.")
        self._fail(self._live.unended, closed)
        self._prefetches.fail(self._prefetches.askings, closed)
        self._lines.lose_all()
        for reader in self._readers.values():
            reader.cancel()
        await asyncio.gather(*self._readers.values(), return_exceptions=True)

    def abandon(self) -> None:
        """Close the links from outside of their loop, which runs no more.

        Streams may not be told.
        """
        self._on_loss = None
        self._live.clear()
        self._lines.cut_all()

    def tell_all(self, message: Hint) -> None:
        """Tell every engine something that is not answered, later if it comes too soon.

        Raises EngineDead if there is no link, and nobody makes another, or too much waits for it.
        """
        if self._hints.hold_back(message):
            return
        try:
            self._lines.tell_all(message)
        except EngineDead as error:
            if self._hints.is_full:
                raise
            self._want_link(error)
            self._hints.add(message)

    def ask(self, message: SubmitRequest | PrefetchPrompt) -> None:
        """Ask one of the engines. Raises EngineDead if none can be asked."""
        beside: list[AskingId] = []
        is_begun = isinstance(message, SubmitRequest) and len(message.earlier_output) > 0
        if isinstance(message, SubmitRequest) and message.sample_of is not None and not is_begun:
            # Its pages are where the first sample is; what has begun may go on elsewhere by now.
            beside = [asking for _, asking in self.names.askings_of(message.sample_of)]
        self._hints.note_asked(self._lines.ask(message, beside))
        self.names.use(message.request_id, message.asking)

    def leave(self, request: OpenRequest) -> None:
        """Stop listening: abort what still runs, and drop what may come of it."""
        if not self._live.drop(request):
            return
        # By now its id may stand for a later asking.
        is_in_use = self.names.is_used_by(request.request_id, request.asking)
        if is_in_use and not request.stream.has_ended:
            self._tell_to_end(AbortRequest(asking=request.asking, request_id=request.request_id))

    async def _read_frames(self, line: EngineLine, link: Link) -> None:
        """Sort frames into streams until the link closes."""
        reason = "its reader was stopped"
        try:
            while True:
                frame = await link.receive()
                if isinstance(frame, EngineNews):
                    if frame.report is not None:
                        line.hear(frame.report)
                    self._choice.hear(line, frame)
                    self._leave_asleep()
                    continue
                assert isinstance(frame, TokenFrame), (
                    f"the Scheduler sent a client a {type(frame).__name__}"
                )
                self._route(line, frame)

        except LinkClosed as error:
            reason = str(error) or "the link closed"
        except asyncio.CancelledError:
            # At the end of its event loop: nobody waits for the requests any more.
            self._on_loss = None
            raise
        except Exception as error:
            # Asked again, it may be answered by the same.
            own = [each for each in self._live.unended if line.has(each.asking)]
            text = f"An engine's news cannot be read ({error}). Ask again."
            self._fail(own, lambda: EngineDead(text))
            raise
        finally:
            # Whatever ended the reader, nobody may wait for it.
            self._lose(line, f"The connection to the engine is lost: {reason}. Connect again.")

    def _route(self, line: EngineLine, frame: TokenFrame) -> None:
        now_s = time.monotonic()

        # Plain tokens come as columns, all else as deltas.
        for live in self._live.push_tokens(frame.askings, frame.token_ids.tolist(), now_s):
            self._stop(live)

        are_left = [self._take(line, delta, now_s) for delta in frame.deltas]
        if any(are_left):
            self._ask_waiting()

    def _take(self, line: EngineLine, delta: RequestDelta, now_s: float) -> bool:
        """Take in news of an asking; whether its engine has left it for another one."""
        live = self._live.get(delta.asking)
        is_left = live is not None and self._lines.is_left(line, delta)
        if is_left:
            delta = replace(delta, failure=None, finished=None)
        is_stopped = live is not None and self._live.push(live, delta, now_s)

        is_last = delta.finished is not None or delta.failure is not None
        if len(delta.token_ids):
            self._choice.answered(delta.asking, delta.request_id, is_last=False)
        if is_left or is_last:
            self._choice.answered(delta.asking, delta.request_id, is_last=True)
            line.answered(delta.asking)
        if is_last:
            self._release(delta.request_id, delta.asking)
            self._prefetches.end(delta)
        elif live is None:
            self._prefetches.note_taken(delta.asking)
        elif is_stopped:
            self._stop(live)
        return is_left

    def _leave_asleep(self) -> None:
        """Ask others for what engines that sleep leave unanswered for too long."""
        asleep, taking = self._lines.asleep, self._lines.taking
        unended = self._live.unended if asleep and taking else []
        there = [each for each in unended if any(line.has(each.asking) for line in asleep)]

        def predict_s(request: OpenRequest) -> float:
            return self._choice.predict_s(taking, request.submission)

        leaving = self._silent.due(there, predict_s, time.monotonic())
        for each in leaving:
            self._lines.leave(each.asking, each.request_id)
        if leaving:
            self._ask_waiting()

    def _stop(self, live: OpenRequest) -> None:
        """Note that a stop string ended the output, which the Scheduler cannot know."""
        self._tell_to_end(StopRequest(asking=live.asking, request_id=live.request_id))

    def _tell_to_end(self, message: AbortRequest | StopRequest) -> bool:
        """End an asking; False if there is nobody to tell."""
        self._release(message.request_id, message.asking)
        return self._lines.tell(message.asking, message)

    def _lose(self, line: EngineLine, text: str) -> None:
        """Ask elsewhere, now or later, for what was asked over a link."""
        lost = line.lose()
        self._choice.lost(line)
        self._end_waiting_aborted()
        if self._on_loss is None:
            self._prefetches.fail(lost, lambda: EngineDead(text))
            self._fail(self._waiting(), lambda: EngineDead(text))
            return
        if not self.is_closed:
            self._ask_waiting()
        # No engine keeps the deadline of what waits on.
        now_s = time.monotonic()
        for each in self._waiting():
            each.at_deadline(self._expire, now_s)
        self._on_loss(line.engine)

    def _waiting(self) -> list[OpenRequest]:
        return [each for each in self._live.unended if self._lines.of(each.asking) is None]

    def _waiting_prefetches(self) -> list[AskingId]:
        return [each for each in self._prefetches.askings if self._lines.of(each) is None]

    def _ask_waiting(self) -> None:
        self._end_waiting_aborted()
        now_s = time.monotonic()
        for each in self._waiting():
            message = self._live.ask_again(each, self.next(), now_s)
            # Also while it waits on, its id stands for it.
            self.names.use(message.request_id, message.asking)
            # If that link is lost, too, its reader says so, and it waits for the next one.
            with contextlib.suppress(EngineDead):
                self.ask(message)
        for asking in self._waiting_prefetches():
            again = self._prefetches.ask_again(asking, self.next())
            self.names.use(again.request_id, again.asking)
            with contextlib.suppress(EngineDead):
                self.ask(again)
        self._hints.tell_due(self._lines)

    def _release(self, request_id: RequestId, asking: AskingId) -> None:
        self.names.release(request_id, asking)
        self._choice.ended(asking, request_id)
        self._hints.note_released(request_id, self._lines)

    def _fail(self, requests: list[OpenRequest], error: Callable[[], RaydixError]) -> None:
        for each in requests:
            self._release(each.request_id, each.asking)
        self._live.fail(requests, error)

    def _expire(self, request: OpenRequest) -> None:
        """End what waits for a link beyond its deadline."""
        if request.stream.has_ended or self._lines.of(request.asking) is not None:
            return
        text = "deadline_s passed while no engine could be asked for the rest of the output."
        failure = RequestFailure(kind=FailureKind.DEADLINE_EXCEEDED, message=text)
        self._release(request.request_id, request.asking)
        self._tell_last(request, failure=failure)

    def _end_waiting_aborted(self) -> None:
        """End what was aborted, and is not answered any more."""
        for each in self._waiting():
            # Whoever aborts a request has its id back.
            if not self.names.is_used_by(each.request_id, each.asking):
                self._tell_last(each, finished=FinishReason.ABORT)

    def _tell_last(
        self,
        request: OpenRequest,
        finished: FinishReason | None = None,
        failure: RequestFailure | None = None,
    ) -> None:
        """Give a request the last news that no engine gives it."""
        last = RequestDelta(
            asking=request.asking,
            request_id=request.request_id,
            finished=finished,
            failure=failure,
        )
        self._live.push(request, last, time.monotonic())
