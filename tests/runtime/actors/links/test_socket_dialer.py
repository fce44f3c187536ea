"""What becomes of dialling a listener."""

import socket

import pytest

from raydix.runtime.actors.links import socket_link
from raydix.runtime.actors.links.link import LinkSilent
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
