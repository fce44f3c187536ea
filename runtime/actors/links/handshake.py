"""How both ends of a new link prove that they know one secret, which is never sent. No I/O.

The listener speaks first, by a challenge: a number that is used once. The dialer answers with a
number of its own, who it is, and a proof; the listener with who it is, and a proof. A proof is a
HMAC-SHA256 over both numbers, over which end makes it, and over all that was said of either end: it
cannot be made without the secret, be used again, be turned back on its maker, nor vouch for anybody
else. Until a proof is right nothing else of its frame is read.

The secret must be long and random: who overhears a proof may try guesses on it.
"""

import hashlib
import hmac
import secrets
from enum import Enum
from typing import Protocol

from raydix.errors import RaydixError
from raydix.runtime.messages.codec import SCHEMA, MessageError, decode, encode
from raydix.runtime.messages.hello import Hello

NONCE_BYTES = 32
PROOF_BYTES = hashlib.sha256().digest_size
_NAME = b"raydix "
GREETING = _NAME + SCHEMA
"""Begins every challenge, so that a peer that speaks something else is told at once."""


class HandshakeFailed(RaydixError):
    """The peer does not know the secret, or says something else than a handshake has there."""


class End(Enum):
    """The end of a link whose proof it is."""

    DIALER = b"dialer"
    LISTENER = b"listener"


class Handshake(Protocol):
    """One end's part: frames in, frames out, until the peer is known or the handshake fails."""

    @property
    def peer(self) -> Hello | None:
        """Who the peer is; None until its proof was right."""

    def begin(self) -> bytes | None:
        """The first frame's body, if this end speaks first."""

    def take(self, body: bytes) -> bytes | None:
        """Take the peer's next frame; returns the answer to it, if any. Raises HandshakeFailed.

        After a failure, or once the peer is known, every frame fails.
        """


class ListenerHandshake:
    """Owns: how far the listener's `Handshake` with one dialer has come."""

    def __init__(self, own: Hello, secret: bytes, nonce: bytes) -> None:
        """`nonce`: of `new_nonce`, for this handshake alone."""
        self._own = own
        self._secret = _checked(secret)
        self._nonce = nonce
        self._has_heard = False
        self._peer: Hello | None = None

    @property
    def peer(self) -> Hello | None:
        """The dialer, once its proof was right."""
        return self._peer

    def begin(self) -> bytes:
        """The greeting with the challenge: the listener speaks first."""
        return GREETING + self._nonce

    def take(self, body: bytes) -> bytes:
        """Check the dialer's proof and answer with the listener's own."""
        if self._has_heard:
            raise HandshakeFailed("the peer goes on after its proof")
        # One attempt for each challenge, whatever comes of it.
        self._has_heard = True
        nonce, proof, hello = _cut(body, NONCE_BYTES, PROOF_BYTES)
        if nonce == self._nonce:
            raise HandshakeFailed("the peer's challenge is our own")

        said = (self._nonce, nonce, hello)
        self._peer = _judge(self._secret, End.DIALER, said, proof, hello)
        own = encode(self._own)
        return prove(self._secret, End.LISTENER, *said, own) + own


class DialerHandshake:
    """Owns: how far the dialer's `Handshake` with a listener has come."""

    def __init__(self, own: Hello, secret: bytes, nonce: bytes) -> None:
        """`nonce`: of `new_nonce`, for this handshake alone."""
        self._own = encode(own)
        self._secret = _checked(secret)
        self._nonce = nonce
        self._said: tuple[bytes, ...] | None = None
        """What the listener was told: both numbers and who we are. None before that."""
        self._is_over = False
        self._peer: Hello | None = None

    @property
    def peer(self) -> Hello | None:
        """The listener, once its proof was right."""
        return self._peer

    def begin(self) -> None:
        """Return nothing: the listener speaks first."""

    def take(self, body: bytes) -> bytes | None:
        """Answer the listener's challenge with a proof, then check the listener's."""
        if self._is_over:
            raise HandshakeFailed("the listener goes on after its proof, or after a wrong one")
        if self._said is None:
            # Until it is found right, it is taken for wrong.
            self._is_over = True
            answer = self._meet(body)
            self._is_over = False
            return answer

        self._is_over = True
        proof, hello = _cut(body, PROOF_BYTES)
        self._peer = _judge(self._secret, End.LISTENER, (*self._said, hello), proof, hello)
        return None

    def _meet(self, challenge: bytes) -> bytes:
        """Our answer to the challenge."""
        nonce = challenge.removeprefix(GREETING)
        if len(challenge) != len(GREETING) + NONCE_BYTES or len(nonce) != NONCE_BYTES:
            if challenge.startswith(_NAME):
                raise HandshakeFailed(
                    "the engine there is of another version of Raydix than this process. Use the "
                    "same one at both ends"
                )
            raise HandshakeFailed("what listens there is no engine of Raydix")
        if nonce == self._nonce:
            raise HandshakeFailed("the listener's challenge is our own")

        self._said = (nonce, self._nonce, self._own)
        return self._nonce + prove(self._secret, End.DIALER, *self._said) + self._own


def new_nonce() -> bytes:
    """A number for one handshake."""
    return secrets.token_bytes(NONCE_BYTES)


def prove(secret: bytes, end: End, *said: bytes) -> bytes:
    """The proof of one end: of the secret, and of all that was said so far, part by part."""
    proof = hmac.new(secret, digestmod=hashlib.sha256)
    for part in (GREETING, end.value, *said):
        # With its length, so that no two lists of parts read the same.
        proof.update(len(part).to_bytes(8, "little"))
        proof.update(part)
    return proof.digest()


def _judge(secret: bytes, end: End, said: tuple[bytes, ...], proof: bytes, hello: bytes) -> Hello:
    """Who made the proof. Raises HandshakeFailed."""
    if not hmac.compare_digest(proof, prove(secret, end, *said)):
        raise HandshakeFailed("the peer does not show the secret")
    try:
        message = decode(hello)
    except MessageError as error:
        raise HandshakeFailed(f"the peer knows the secret, but its build differs: {error}") from (
            error
        )
    if not isinstance(message, Hello):
        raise HandshakeFailed(f"the peer introduces itself by a {type(message).__name__}")
    return message


def _cut(body: bytes, *lengths: int) -> tuple[bytes, ...]:
    """Parts of these lengths and the rest, which is not empty. Raises HandshakeFailed."""
    if len(body) <= sum(lengths):
        raise HandshakeFailed(f"a frame of {len(body)} bytes; expected more than {sum(lengths)}")
    parts = []
    for length in lengths:
        parts.append(body[:length])
        body = body[length:]
    return (*parts, body)


def _checked(secret: bytes) -> bytes:
    if not secret:
        raise ValueError("the secret of a link is empty")
    return secret
