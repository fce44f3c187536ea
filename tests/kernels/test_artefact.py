import json
from pathlib import Path

import pytest

pytest.importorskip("triton")

from raydix.kernels.compiling.artefact import (
    Artefact,
    compiling_into,
    read_artefact,
    write_artefact,
)
from raydix.kernels.compiling.packed import pack, unpack
from raydix.kernels.compiling.variants import Variant

IDENTITY = {"model": "one", "gpu": "9.0, 132", "triton": "3.6.0"}
VARIANTS = (Variant("raydix.kernels.a._a", "{}"), Variant("raydix.kernels.b._b", "{1}"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with one artefact, of a cache with two kernels and what launches one."""
    files = {
        "KEY1/_a.json": "1",
        "KEY1/_a.cubin": "22",
        "KEY1/_a.ttir": "not needed",
        "KEY1/__grp___a.json": '{"child_paths": {"_a.json": "/elsewhere/_a.json"}}',
        "KEY2/_b.json": "3",
        "KEY2/_b.cubin": "44",
        "KEY3/__triton_launcher.cpython-312.so": "5",
    }
    for place, content in files.items():
        path = tmp_path / "cache" / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    write_artefact(tmp_path / "out", IDENTITY, VARIANTS, tmp_path / "cache")
    return tmp_path / "out"


def only(folder: Path) -> Path:
    [path] = folder.iterdir()
    return path


def test_what_is_installed_is_what_launches_need_with_paths_of_this_machine(
    folder: Path, tmp_path: Path
) -> None:
    artefact = read_artefact(folder, IDENTITY)
    assert isinstance(artefact, Artefact)
    assert artefact.variants == VARIANTS

    with compiling_into(tmp_path / "new"):
        artefact.install()

    new = tmp_path / "new"
    assert (new / "KEY1/_a.cubin").read_text() == "22"
    assert not (new / "KEY1/_a.ttir").exists()
    assert (new / "KEY3/__triton_launcher.cpython-312.so").read_text() == "5"
    group = json.loads((new / "KEY1/__grp___a.json").read_text())["child_paths"]
    assert group == {name: str(new / "KEY1" / name) for name in ("_a.json", "_a.cubin")}


def test_an_artefact_travels_packed(folder: Path, tmp_path: Path) -> None:
    unpack(pack(folder), tmp_path / "there")

    assert read_artefact(tmp_path / "there", IDENTITY) == read_artefact(folder, IDENTITY)


def test_an_artefact_of_others_is_named_with_what_differs(folder: Path) -> None:
    told = read_artefact(folder, IDENTITY | {"triton": "3.7.0"})

    assert isinstance(told, str)
    assert "triton 3.6.0 in place of 3.7.0" in told
    assert "model" not in told.partition("versions: ")[2]


def test_a_name_proves_nothing(folder: Path, tmp_path: Path) -> None:
    other = IDENTITY | {"gpu": "10.0, 148"}
    written = write_artefact(tmp_path / "other", other, VARIANTS, tmp_path / "cache")
    only(folder).rename(tmp_path / "aside")
    (tmp_path / "aside").rename(folder / written.name)

    told = read_artefact(folder, other)

    assert isinstance(told, str)
    assert "is of gpu 9.0, 132 in place of 10.0, 148" in told


@pytest.mark.parametrize("place", ["KEY1/_a.cubin", "KEY2/_b.json"])
def test_a_file_that_changed_or_is_gone_is_named(folder: Path, place: str) -> None:
    path = only(folder) / place
    whole = path.read_text()
    for damage in ("x", None):
        path.unlink() if damage is None else path.write_text(damage)

        assert read_artefact(folder, IDENTITY) == f"{path} is not the file that was written"
    path.write_text(whole)
    assert isinstance(read_artefact(folder, IDENTITY), Artefact)


def test_a_place_outside_of_the_cache_is_refused(folder: Path) -> None:
    manifest = only(folder) / "manifest.json"
    told = json.loads(manifest.read_text())
    for place in ("../evil", "/etc/passwd", "a/b/c"):
        manifest.write_text(json.dumps(told | {"files": {place: "0"}}))

        said = read_artefact(folder, IDENTITY)

        assert isinstance(said, str)
        assert "is no place in a cache" in said


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"identity": 1, "files": {}, "variants": 3}'])
def test_a_manifest_that_cannot_be_read_is_named(folder: Path, content: str) -> None:
    (only(folder) / "manifest.json").write_text(content)

    assert "cannot be read" in str(read_artefact(folder, IDENTITY))


def test_an_empty_folder_has_none(tmp_path: Path) -> None:
    assert "has none for this model" in str(read_artefact(tmp_path, IDENTITY))
