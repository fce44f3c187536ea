"""The names of pins, which tell what is pinned: so a pin is found again by its prompt."""

import uuid
from hashlib import blake2b

from raydix.runtime.messages.arrays import Int32Array


def new_pin_name(token_ids: Int32Array, cache_salt: str | None) -> str:
    """A name that no other pin has, for a pin of this prompt with this salt."""
    return f"{_digest(token_ids, cache_salt)}-{uuid.uuid4().hex}"


def is_pin_of(pin_name: str, token_ids: Int32Array, cache_salt: str | None) -> bool:
    """Whether a pin of this name was made of this prompt, as far as 64 bits tell."""
    return pin_name.startswith(f"{_digest(token_ids, cache_salt)}-")


def _digest(token_ids: Int32Array, cache_salt: str | None) -> str:
    salt = b"" if cache_salt is None else b"salt " + cache_salt.encode()
    digest = blake2b(salt, digest_size=8, person=b"pin")
    digest.update(blake2b(token_ids.tobytes()).digest())
    return digest.hexdigest()
