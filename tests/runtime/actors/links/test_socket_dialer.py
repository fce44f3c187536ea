"""What becomes of dialling a listener."""

import asyncio
import contextlib
import socket
import time
from collections.abc import Awaitable, Callable, Iterator

import pytest

from raydix.runtime.actors.links import attempts, socket_link
from raydix.runtime.actors.links.blocking_link import connect_blocking
from raydix.runtime.actors.links.link import LinkClosed, LinkSilent
from raydix.runtime.actors.links.socket_dialer import connect
from tests.runtime.actors.links.link_ends import FAR, SECRET, short_folder


async def test_a_listener_that_says_nothing_has_not_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(socket_link, "HANDSHAKE_S", 0.01)
    with short_folder() as folder, socket.socket(socket.AF_UNIX) as stopped:
        stopped.bind(f"{folder}/stopped")
        stopped.listen()
        with pytest.raises(LinkSilent, match="has not answered a greeting"):
            await connect(f"unix:{folder}/stopped", FAR, SECRET)


@contextlib.contextmanager
def mute_address() -> Iterator[str]:
    """An address at which no attempt to connect is answered, as if the host were gone."""
    with contextlib.ExitStack() as sockets:
        full = sockets.enter_context(socket.socket())
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        # The kernel drops what comes once the queue of those that were not accepted is full.
        for _ in range(4):
            waiting = sockets.enter_context(socket.socket())
            waiting.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                waiting.connect(full.getsockname())
        yield f"tcp:127.0.0.1:{full.getsockname()[1]}"


async def dial_blocking(address: str, timeout_s: float) -> None:
    """Dial as a thread does, beside the test's loop."""
    await asyncio.to_thread(connect_blocking, address, FAR, SECRET, timeout_s)


async def dial(address: str, timeout_s: float) -> None:
    """Dial on the test's loop."""
    await connect(address, FAR, SECRET, timeout_s)


@pytest.mark.parametrize("dialler", [dial, dial_blocking])
@pytest.mark.parametrize(("timeout_s", "least_s"), [(0.0, 0.2), (0.5, 0.5)])
async def test_a_host_that_answers_nothing_is_dialled_for_as_long_as_was_asked(
    dialler: Callable[[str, float], Awaitable[None]],
    timeout_s: float,
    least_s: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(attempts, "FIRST_ATTEMPT_S", 0.2)
    with mute_address() as address:
        began_s = time.monotonic()
        with pytest.raises(LinkClosed, match=rf"nobody answers at {address} after \d"):
            await dialler(address, timeout_s)
        assert least_s <= time.monotonic() - began_s < 4.0
