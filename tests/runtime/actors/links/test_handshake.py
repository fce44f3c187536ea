"""The handshake by itself: who is believed, and that nothing of it can be used a second time."""

import hmac
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raydix.runtime.actors.links.handshake import (
    GREETING,
    NONCE_BYTES,
    PROOF_BYTES,
    DialerHandshake,
    End,
    Handshake,
    HandshakeFailed,
    ListenerHandshake,
    new_nonce,
    prove,
)
from raydix.runtime.messages.codec import encode
from raydix.runtime.messages.host import ProcessDrained
from tests.runtime.actors.links.link_ends import FAR, NEAR, SECRET

NEAR_NONCE, FAR_NONCE = b"n" * NONCE_BYTES, b"f" * NONCE_BYTES


def near(secret: bytes = SECRET, nonce: bytes = NEAR_NONCE) -> ListenerHandshake:
    return ListenerHandshake(NEAR, secret, nonce)


def far(secret: bytes = SECRET, nonce: bytes = FAR_NONCE) -> DialerHandshake:
    return DialerHandshake(FAR, secret, nonce)


def introduction(dialer: DialerHandshake, listener: ListenerHandshake) -> bytes:
    body = dialer.take(listener.begin())
    assert body is not None
    return body


def exchange() -> tuple[bytes, bytes, bytes]:
    """All three frames of a handshake that succeeds."""
    listener, dialer = near(), far()
    said = introduction(dialer, listener)
    return listener.begin(), said, listener.take(said)


def refuses(end: Handshake, body: bytes, match: str | None = None) -> None:
    """The end fails by this frame, knows nobody, and takes nothing more."""
    with pytest.raises(HandshakeFailed, match=match):
        end.take(body)
    assert end.peer is None
    for later in exchange():
        with pytest.raises(HandshakeFailed):
            end.take(later)
    assert end.peer is None


def test_two_ends_with_one_secret_know_each_other() -> None:
    listener, dialer = near(), far()
    assert dialer.begin() is None

    answer = listener.take(introduction(dialer, listener))
    assert listener.peer == FAR
    assert dialer.peer is None
    assert dialer.take(answer) is None
    assert dialer.peer == NEAR


def test_the_secret_is_in_no_frame() -> None:
    secret = b"correct horse battery staple"
    listener, dialer = near(secret), far(secret)
    said = introduction(dialer, listener)
    for body in (listener.begin(), said, listener.take(said)):
        assert secret not in body
        assert secret.hex().encode() not in body


def test_a_dialer_without_the_secret_is_refused_and_told_nothing() -> None:
    listener = near()
    refuses(listener, introduction(far(b"guess"), listener), "does not show the secret")


def test_a_listener_without_the_secret_is_refused() -> None:
    dialer = far()
    impostor = near(b"guess")
    said = introduction(dialer, impostor)
    hello = encode(NEAR)
    proof = prove(b"guess", End.LISTENER, NEAR_NONCE, FAR_NONCE, encode(FAR), hello)
    assert said
    refuses(dialer, proof + hello, "does not show the secret")


def test_a_recorded_introduction_is_worth_nothing_to_another_challenge() -> None:
    _, said, _ = exchange()
    refuses(near(nonce=b"m" * NONCE_BYTES), said, "does not show the secret")


def test_a_recorded_listener_is_worth_nothing_to_another_dialer() -> None:
    challenge, _, answer = exchange()
    dialer = far(nonce=b"g" * NONCE_BYTES)
    dialer.take(challenge)
    refuses(dialer, answer, "does not show the secret")


def test_one_challenge_has_one_answer() -> None:
    _, said, _ = exchange()
    listener = near()
    listener.take(said)
    with pytest.raises(HandshakeFailed, match="goes on"):
        listener.take(said)

    failed = near()
    refuses(failed, b"x" * len(said))


def test_what_the_dialer_says_is_not_taken_back_from_its_listener() -> None:
    dialer = far()
    said = introduction(dialer, near())
    refuses(dialer, said[NONCE_BYTES:], "does not show the secret")


def test_what_the_listener_says_is_not_taken_back_from_its_dialer() -> None:
    _, _, answer = exchange()
    refuses(near(), FAR_NONCE + answer, "does not show the secret")


def test_a_challenge_that_comes_back_is_refused() -> None:
    refuses(far(), GREETING + FAR_NONCE, "our own")
    proof = prove(SECRET, End.DIALER, NEAR_NONCE, NEAR_NONCE, encode(FAR))
    refuses(near(), NEAR_NONCE + proof + encode(FAR), "our own")


@pytest.mark.parametrize("end", [End.LISTENER, End.DIALER])
def test_the_proof_of_one_end_does_not_serve_for_the_other(end: End) -> None:
    said = (NEAR_NONCE, FAR_NONCE, encode(FAR))
    if end is End.LISTENER:
        refuses(near(), FAR_NONCE + prove(SECRET, end, *said) + encode(FAR))
    else:
        dialer = far()
        introduction(dialer, near())
        refuses(dialer, prove(SECRET, end, *said, encode(NEAR)) + encode(NEAR))


def test_a_proof_vouches_for_no_other_hello() -> None:
    _, said, answer = exchange()
    other = encode(replace(FAR, name="mallory"))
    refuses(near(), said[: NONCE_BYTES + PROOF_BYTES] + other)

    dialer = far()
    introduction(dialer, near())
    refuses(dialer, answer[:PROOF_BYTES] + encode(replace(NEAR, name="mallory")))


def test_an_engine_of_another_build_is_told_from_what_is_none() -> None:
    challenge = near().begin()
    assert challenge is not None
    other = GREETING[:-1] + bytes([GREETING[-1] ^ 1])
    refuses(far(), other + challenge[len(GREETING) :], "of another version of Raydix .* same one")
    refuses(far(), b"raydix 1" + bytes(NONCE_BYTES), "of another version of Raydix")
    refuses(far(), b"SSH-2.0-OpenSSH_9.6\r\n", "no engine of Raydix")


@pytest.mark.parametrize("change", [lambda body: body[:-1], lambda body: body + b"\0"])
def test_frames_that_are_too_short_or_too_long_are_refused(
    change: Callable[[bytes], bytes],
) -> None:
    challenge, said, answer = exchange()
    refuses(far(), change(challenge), "of another version of Raydix")
    refuses(near(), change(said))

    dialer = far()
    introduction(dialer, near())
    refuses(dialer, change(answer))


@pytest.mark.parametrize("num_bytes", [0, 1, NONCE_BYTES, NONCE_BYTES + PROOF_BYTES])
def test_frames_that_end_before_the_hello_are_refused(num_bytes: int) -> None:
    _, said, answer = exchange()
    refuses(near(), said[:num_bytes], "expected more than 64")
    dialer = far()
    introduction(dialer, near())
    refuses(dialer, answer[: min(num_bytes, PROOF_BYTES)], "expected more than 32")


@given(st.binary(max_size=300))
def test_noise_is_refused_at_every_step(noise: bytes) -> None:
    for fresh in (near(), far()):
        with pytest.raises(HandshakeFailed):
            fresh.take(noise)
    dialer = far()
    introduction(dialer, near())
    with pytest.raises(HandshakeFailed):
        dialer.take(noise)


@given(st.integers(0, 10_000), st.integers(1, 255))
def test_one_changed_byte_anywhere_is_refused(position: int, change: int) -> None:
    def changed(body: bytes) -> bytes:
        index = position % len(body)
        return body[:index] + bytes((body[index] ^ change,)) + body[index + 1 :]

    challenge, said, answer = exchange()
    with pytest.raises(HandshakeFailed):
        near().take(changed(said))
    dialer = far()
    introduction(dialer, near())
    with pytest.raises(HandshakeFailed):
        dialer.take(changed(answer))

    # A changed challenge may look like one: then the listener does not believe the answer.
    dialer, listener = far(), near()
    with pytest.raises(HandshakeFailed):
        listener.take(dialer.take(changed(challenge)) or b"")


def test_a_peer_that_knows_the_secret_must_be_of_this_build() -> None:
    for hello, match in ((b"\xc1", "build differs"), (encode(ProcessDrained(pid=1)), "introduces")):
        proof = prove(SECRET, End.DIALER, NEAR_NONCE, FAR_NONCE, hello)
        refuses(near(), FAR_NONCE + proof + hello, match)


def test_parts_of_a_proof_cannot_be_cut_elsewhere() -> None:
    assert prove(SECRET, End.DIALER, b"ab", b"c") != prove(SECRET, End.DIALER, b"a", b"bc")


def test_numbers_are_long_and_used_once() -> None:
    nonces = {new_nonce() for _ in range(100)}
    assert len(nonces) == 100
    assert {len(nonce) for nonce in nonces} == {NONCE_BYTES}


def test_an_empty_secret_is_none() -> None:
    for make in (near, far):
        with pytest.raises(ValueError, match="empty"):
            make(b"")


def test_a_proof_is_an_hmac_of_all_that_was_said() -> None:
    parts = (GREETING, b"dialer", NEAR_NONCE, FAR_NONCE, encode(FAR))
    told = b"".join(len(part).to_bytes(8, "little") + part for part in parts)
    expected = hmac.new(SECRET, told, "sha256").digest()
    assert prove(SECRET, End.DIALER, NEAR_NONCE, FAR_NONCE, encode(FAR)) == expected
