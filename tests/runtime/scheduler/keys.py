"""Page keys as tests write them."""

from raydix.runtime.cache.page_key import KEY_BYTES, MIRROR_KEY_BYTES


def mirror_keys(keys: bytes) -> bytes:
    """The first half of each key, as the mirror of L2 holds them."""
    return b"".join(keys[i : i + MIRROR_KEY_BYTES] for i in range(0, len(keys), KEY_BYTES))
