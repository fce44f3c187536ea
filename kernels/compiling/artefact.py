"""Compiled kernels in a folder, which an image or a shared folder carries to other machines.

A folder has an artefact for each identity: model, settings, GPU and versions. Nothing in it is
believed by its name: the identity is compared word by word, and every file with its digest. Triton
then looks for a kernel by the digest of its source and options, as it always does.

Which variants a model has takes seconds to find out, so they are written down in Triton's cache,
too, by the same identity.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from triton import knobs
from triton.runtime.cache import FileCacheManager

from raydix.kernels.compiling.variants import Variant

Identity = Mapping[str, str]
"""What kernels are compiled for and by, in words."""

_MANIFEST = "manifest.json"
_GROUP = "__grp__"
_KEPT = (".cubin", ".json", ".so")
"""What a launch needs; beside it Triton's cache has every stage of the compiler."""
_NAME_DIGITS = 16


@dataclass(frozen=True, slots=True)
class Artefact:
    """An artefact that has been looked at, byte by byte."""

    variants: tuple[Variant, ...]
    files: Mapping[str, bytes]
    """The content of each file, by its place in a cache: a folder in it, and a file in that."""

    def install(self) -> None:
        """Put the files into Triton's cache on this machine."""
        by_folder: dict[str, dict[str, bytes]] = {}
        for place, content in self.files.items():
            folder, _, name = place.partition("/")
            by_folder.setdefault(folder, {})[name] = content
        for folder, files in by_folder.items():
            manager = FileCacheManager(folder)
            paths = {name: manager.put(content, name) for name, content in files.items()}
            # What belongs together is written last, with the paths of this machine.
            for name in files:
                if name.endswith(".json"):
                    manager.put_group(name, paths)


def write_artefact(
    folder: Path, identity: Identity, variants: Sequence[Variant], cache: Path
) -> Path:
    """Write what is in a cache of Triton's that has these variants and no others.

    Returns the artefact's folder, which replaces one of the same identity.
    """
    target = folder / _name(identity)
    shutil.rmtree(target, ignore_errors=True)
    digests = {}
    for path in sorted(cache.glob("*/*")):
        if path.suffix in _KEPT and not path.name.startswith(_GROUP):
            place = str(path.relative_to(cache))
            (target / place).parent.mkdir(parents=True, exist_ok=True)
            content = path.read_bytes()
            (target / place).write_bytes(content)
            digests[place] = hashlib.sha256(content).hexdigest()
    manifest = {
        "identity": dict(identity),
        "variants": [[each.kernel, each.specialization] for each in variants],
        "files": digests,
    }
    target.mkdir(parents=True, exist_ok=True)
    (target / _MANIFEST).write_text(json.dumps(manifest, indent=1))
    return target


def read_artefact(folder: Path, identity: Identity) -> Artefact | str:
    """The artefact of this identity; in words why there is none, or why it is not to be trusted."""
    target = folder / _name(identity)
    if not (target / _MANIFEST).is_file():
        return f"{folder} has none for this model, GPU and versions{_others(folder, identity)}"
    try:
        manifest = json.loads((target / _MANIFEST).read_text())
        told, files = manifest["identity"], manifest["files"]
        variants = tuple(Variant(*each) for each in manifest["variants"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"{target / _MANIFEST} cannot be read: {error!r}"
    if told != dict(identity):
        return f"{target} is of {_differences(told, identity)}, whatever its name"

    contents = {}
    for place, digest in files.items():
        path = target / place
        if len(Path(place).parts) != 2 or ".." in Path(place).parts:
            return f"{target / _MANIFEST} names {place}, which is no place in a cache"
        content = path.read_bytes() if path.is_file() else b""
        if hashlib.sha256(content).hexdigest() != digest:
            return f"{path} is not the file that was written"
        contents[place] = content
    return Artefact(variants, contents)


def keep_variants(identity: Identity, variants: Sequence[Variant]) -> None:
    """Write down in Triton's cache which variants there are, for whoever starts next."""
    told = {
        "identity": dict(identity),
        "variants": [[each.kernel, each.specialization] for each in variants],
    }
    path = _list(identity)
    path.parent.mkdir(parents=True, exist_ok=True)
    # Several processes may write the same at once.
    written = path.with_suffix(f".{os.getpid()}")
    written.write_text(json.dumps(told))
    written.replace(path)


def kept_variants(identity: Identity) -> tuple[Variant, ...] | None:
    """What was written down for this identity; None if there is nothing, or nothing readable."""
    try:
        told = json.loads(_list(identity).read_text())
        variants = tuple(Variant(*each) for each in told["variants"])
        is_of_it = told["identity"] == dict(identity)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return variants if is_of_it else None


@contextmanager
def compiling_into(cache: Path) -> Iterator[None]:
    """Meanwhile Triton's cache is that folder."""
    before, knobs.cache.dir = knobs.cache.dir, str(cache)
    try:
        yield
    finally:
        knobs.cache.dir = before


def _list(identity: Identity) -> Path:
    return Path(knobs.cache.dir) / f"{_name(identity)}.variants"


def _name(identity: Identity) -> str:
    told = json.dumps(dict(identity), sort_keys=True).encode()
    return hashlib.sha256(told).hexdigest()[:_NAME_DIGITS]


def _others(folder: Path, identity: Identity) -> str:
    """What the artefacts that are there are of, in so far as that is not what is wanted."""
    told = []
    for path in sorted(folder.glob(f"*/{_MANIFEST}")):
        try:
            told.append(
                f"{path.parent.name} is of "
                f"{_differences(json.loads(path.read_text())['identity'], identity)}"
            )
        except (OSError, ValueError, KeyError, AttributeError):
            told.append(f"{path} cannot be read")
    return f": {'; '.join(told)}" if told else ""


def _differences(told: Identity, wanted: Identity) -> str:
    names = sorted({*told, *wanted})
    return ", ".join(
        f"{name} {told.get(name)} in place of {wanted.get(name)}"
        for name in names
        if told.get(name) != wanted.get(name)
    )
