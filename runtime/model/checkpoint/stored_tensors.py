"""What the header of a safetensors file says of its tensors, checked against the file's length.

No torch is imported, so a start tells at once what is wrong with a file.
"""

import json
import math
import stat
from pathlib import Path

from raydix.errors import CheckpointError
from raydix.runtime.model.formats.stored_tensor import StoredTensor

_LENGTH_BYTES = 8
_MAX_HEADER_BYTES = 100_000_000
"""The longest header, as the format's own library has it."""
_METADATA = "__metadata__"
"""The entry of a header that is no tensor."""
_GIT_LFS = b"version "
"""How the small file begins that Git LFS leaves in place of a large one."""
_ELEMENT_BYTES = {
    "F64": 8,
    "F32": 4,
    "F16": 2,
    "BF16": 2,
    "I64": 8,
    "I32": 4,
    "I16": 2,
    "I8": 1,
    "U8": 1,
    "BOOL": 1,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "F8_E8M0": 1,
}
"""The bytes of an element by the format's words, of which it has more."""


def list_tensors(path: Path) -> list[StoredTensor]:
    """The tensors of a file, in the order of their bytes.

    Raises CheckpointError for a file that cannot be read, is cut short, or is no such file.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            # A pipe would keep whoever opens it.
            raise CheckpointError(
                f"{path} is no file with bytes of its own. Fetch the checkpoint again."
            )
        with path.open("rb") as file:
            length = file.read(_LENGTH_BYTES)
            if length == _GIT_LFS:
                raise CheckpointError(
                    f"{path} is the small file that Git leaves where Git LFS has the weights. Run "
                    "`git lfs pull` in its folder."
                )
            header_bytes = int.from_bytes(length, "little")
            header = file.read(min(header_bytes, _MAX_HEADER_BYTES))
        start = _LENGTH_BYTES + header_bytes
        file_bytes = path.stat().st_size
        _require_header(header, header_bytes, file_bytes)
        tensors = _tensors(path, start, header)
        _require_whole(tensors, start, file_bytes)
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be read: {error.strerror}. Expected a file that this user may read."
        ) from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{path} is cut short or corrupt: {error}. Fetch the checkpoint again."
        ) from error
    return tensors


def _require_header(header: bytes, header_bytes: int, file_bytes: int) -> None:
    if file_bytes <= _LENGTH_BYTES:
        raise ValueError(f"it has {file_bytes} bytes; expected a header and tensors")
    if len(header) != header_bytes:
        raise ValueError(
            f"its first {_LENGTH_BYTES} bytes announce a header of {header_bytes:,} bytes; "
            f"expected at most {min(_MAX_HEADER_BYTES, file_bytes - _LENGTH_BYTES):,}, as the "
            f"file has {file_bytes:,} in all"
        )


def _tensors(path: Path, start: int, header: bytes) -> list[StoredTensor]:
    described = json.loads(header)
    if not isinstance(described, dict):
        raise ValueError(f"its header is a {type(described).__name__}; expected a JSON object")

    tensors = [
        _stored(path, name, start, entry) for name, entry in described.items() if name != _METADATA
    ]
    return sorted(tensors, key=lambda each: (each.offset, each.num_bytes))


def _stored(path: Path, name: str, start: int, entry: object) -> StoredTensor:
    match entry:
        case {"dtype": str(dtype), "shape": [*shape], "data_offsets": [int(begin), int(end)]}:
            pass
        case _:
            raise ValueError(f"its header describes {name} by {entry}")
    if dtype not in _ELEMENT_BYTES:
        raise ValueError(f"{name} is {dtype}; known are {', '.join(_ELEMENT_BYTES)}")

    sizes = tuple(int(str(size)) for size in shape)
    if end - begin != math.prod(sizes) * _ELEMENT_BYTES[dtype]:
        raise ValueError(f"{name}, {dtype} {list(sizes)}, has {end - begin:,} bytes")
    return StoredTensor(
        name=name,
        path=path,
        offset=start + begin,
        num_bytes=end - begin,
        dtype=dtype,
        shape=sizes,
    )


def _require_whole(tensors: list[StoredTensor], start: int, file_bytes: int) -> None:
    """Raise ValueError unless these tensors are all of the file behind its header, in turn."""
    end = start
    for each in tensors:
        if each.offset != end:
            raise ValueError(f"{each.name} begins at byte {each.offset:,}; expected {end:,}")
        end += each.num_bytes
    if end != file_bytes:
        raise ValueError(f"it has {file_bytes:,} bytes; its header describes {end:,}")
