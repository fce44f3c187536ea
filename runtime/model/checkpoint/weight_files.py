"""The weights in a checkpoint's folder: which files there are, and that they belong together.

No torch is imported, so a start tells at once what is missing.
"""

from collections.abc import Collection, Mapping
from pathlib import Path

from raydix.errors import CheckpointError
from raydix.runtime.model.checkpoint.json_file import read_json
from raydix.runtime.model.checkpoint.stored_tensors import list_tensors
from raydix.runtime.model.formats.stored_tensor import StoredTensor

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_REMEDY = "Fetch the checkpoint again."
_MAX_NAMED = 5


def list_weights(folder: Path) -> list[StoredTensor]:
    """Every tensor of every file, each once: from the file that the index says, if it names it.

    Raises CheckpointError for files that are missing or corrupt, or that lack what the index says.
    """
    files = weight_files(folder)
    indexed = {name for _, expected in files for name in expected or ()}
    listed: dict[str, StoredTensor] = {}
    for path, expected in files:
        tensors = {each.name: each for each in list_tensors(path)}
        here = expected or set()
        lacking = here - tensors.keys()
        if lacking:
            raise CheckpointError(
                f"{path} lacks {name_some(lacking)}, which {_INDEX} says is expected there. "
                f"{_REMEDY}"
            )
        for name, each in tensors.items():
            if name in here or name not in indexed:
                listed.setdefault(name, each)
    return list(listed.values())


def weight_files(folder: Path) -> list[tuple[Path, set[str] | None]]:
    """Files and, where an index lists them, the tensors that each must hold.

    Raises CheckpointError if there are none, or fewer than the index names.
    """
    index = folder / _INDEX
    if not index.exists():
        if not (folder / _SINGLE).exists():
            raise CheckpointError(
                f"{folder} holds no weights; expected {_SINGLE}, or {_INDEX} and the files that it "
                f"names. {_REMEDY} Random weights, to measure speed: model.load_format=dummy."
            )
        return [(folder / _SINGLE, None)]

    by_file = _names_by_file(index)
    missing = [file for file in by_file if not (folder / file).exists()]
    if missing:
        raise CheckpointError(
            f"{folder} lacks {len(missing)} of the {len(by_file)} files that {_INDEX} names: "
            f"{name_some(missing)}. {_REMEDY}"
        )
    return [(folder / file, names) for file, names in sorted(by_file.items())]


def stored_bytes(folder: Path) -> int | None:
    """The bytes of all weight files; None if some are not here."""
    index = folder / _INDEX
    paths = [folder / name for name in (_names_by_file(index) if index.exists() else [_SINGLE])]
    is_whole = all(path.exists() for path in paths)
    return sum(path.stat().st_size for path in paths) if is_whole else None


def _names_by_file(index: Path) -> Mapping[str, set[str]]:
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict):
        raise CheckpointError(
            f"{index} has no object weight_map; expected the name of a file for each tensor. "
            f"{_REMEDY}"
        )

    by_file: dict[str, set[str]] = {}
    for name, file in weight_map.items():
        if not isinstance(file, str) or Path(file).name != file:
            raise CheckpointError(
                f"{index} says that {name} is in {file!r}; expected the name of a file of its "
                "folder. Correct the index, or fetch the checkpoint again."
            )
        by_file.setdefault(file, set()).add(name)
    return by_file


def name_some(names: Collection[str]) -> str:
    """The first few of these names, and how many more there are."""
    listed = sorted(names)
    rest = f" and {len(listed) - _MAX_NAMED} more" if len(listed) > _MAX_NAMED else ""
    return (", ".join(listed[:_MAX_NAMED]) or "none") + rest
