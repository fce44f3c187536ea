"""How far a prompt goes along an edge of a radix tree."""


def count_shared_pages(edge: bytes, packed_tokens: bytes, offset: int, page_bytes: int) -> int:
    """Leading pages of `edge` that `packed_tokens` also has from byte `offset`.

    The first page is known to agree.
    """
    if packed_tokens.startswith(edge, offset):
        return len(edge) // page_bytes

    view = memoryview(edge)
    low, high = 1, min(len(edge), len(packed_tokens) - offset) // page_bytes
    while low < high:
        middle = (low + high + 1) // 2
        if packed_tokens.startswith(
            view[low * page_bytes : middle * page_bytes], offset + low * page_bytes
        ):
            low = middle
        else:
            high = middle - 1
    return low
