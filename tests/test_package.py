import os
import pickle
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

import raydix
from raydix import errors
from tests.clean_venv import make_clean_venv

ROOT = Path(__file__).resolve().parents[1]
CODE_FOLDERS = ("raydix", "runtime", "kernels", "moe", "plugins")


def output_of(python: Path | str, code: str, folder: Path) -> str:
    """What a fresh interpreter in `folder` prints; the checkout is not on its path by itself."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    result = subprocess.run(
        [str(python), "-c", code],
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from a copy of the sources, so that nothing is left in the checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    for name in CODE_FOLDERS:
        shutil.copytree(
            ROOT / name, source / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__")
        )
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    command = [sys.executable, "-m", "build", "--wheel", "--outdir", str(folder), str(source)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def clean_python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a new environment with the wheel and this one's dependencies."""
    python = make_clean_venv(tmp_path_factory.mktemp("venv"))
    command = [
        str(python),
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        str(wheel),
    ]
    subprocess.run(command, check=True, capture_output=True)
    return python


def test_the_public_names_are_loaded_on_first_use() -> None:
    code = (
        "import sys, raydix; print(*(m for m in ('torch', 'ray', 'numpy', 'raydix.errors') if m "
        "in sys.modules))"
    )
    assert output_of(sys.executable, code, ROOT) == ""


def test_every_public_name_exists() -> None:
    assert {name for name in raydix.__all__ if getattr(raydix, name, None) is None} == set()
    assert set(raydix.__all__) <= set(dir(raydix))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="AsyncLMM"):
        _ = raydix.AsyncLMM


def test_every_error_is_public_and_survives_pickling() -> None:
    batch = errors.BatchFailed({1: errors.BadRequest("empty")}, ["answer", None])
    kinds = {
        value
        for value in vars(errors).values()
        if getattr(value, "__module__", "") == errors.__name__
    }
    parameter = errors.BadParameter("what", "was wrong")
    unknown = errors.UnknownRequest("r")
    others = kinds - {type(batch), type(parameter), type(unknown)}
    texts = [kind("what was wrong") for kind in others]

    for error in (batch, parameter, unknown, *texts):
        kind = type(error)
        assert getattr(raydix, kind.__name__) is kind
        assert issubclass(kind, errors.RaydixError)
        copy = pickle.loads(pickle.dumps(error))
        assert (type(copy), str(copy)) == (kind, str(error))
        assert str(error) == "what was wrong" or error in (batch, unknown)
    copy = pickle.loads(pickle.dumps(batch))
    assert (str(copy.errors), copy.outputs) == (str(batch.errors), batch.outputs)


@pytest.mark.parametrize("package", ["cache", "scheduler", "messages"])
def test_the_pure_parts_load_neither_torch_nor_ray(package: str) -> None:
    code = (
        "import importlib, pkgutil, sys\n"
        f"import raydix.runtime.{package} as package\n"
        "names = [m.name for m in pkgutil.walk_packages(package.__path__, package.__name__ + "
        "'.')]\n"
        "for name in names: importlib.import_module(name)\n"
        "print(len(names) > 0, *(m for m in ('torch', 'ray', 'triton') if m in sys.modules))"
    )
    assert output_of(sys.executable, code, ROOT) == "True"


def test_a_rank_starts_without_the_compiler_of_torch() -> None:
    code = "import sys, raydix.runtime.actors.torch_model; print('torch._dynamo' in sys.modules)"
    assert output_of(sys.executable, code, ROOT) == "False"


@pytest.mark.slow
def test_the_wheel_holds_real_files_and_one_package(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"raydix"}
    sources = {
        f"raydix/{path.relative_to(wheel.parent / 'source')}"
        for folder in ("runtime", "kernels", "moe", "plugins")
        for path in (wheel.parent / "source" / folder).rglob("*.py")
    }
    assert sources <= set(names)
    assert "raydix/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)


@pytest.mark.slow
def test_the_wheel_imports_outside_the_checkout(clean_python: Path, tmp_path: Path) -> None:
    code = (
        "import raydix, raydix.runtime.config.engine; print(raydix.__version__, "
        "raydix.runtime.config.engine.__file__)"
    )
    version, path = output_of(clean_python, code, tmp_path).split()
    assert version == raydix.__version__
    assert Path(path).is_relative_to(clean_python.parents[1])


@pytest.mark.slow
def test_the_wheel_brings_the_command(clean_python: Path, tmp_path: Path) -> None:
    command = [str(clean_python.parent / "raydix"), "config", "schema"]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=True)
    assert '"EngineConfig"' in result.stdout


@pytest.mark.part
@pytest.mark.slow
@pytest.mark.ray
def test_the_wheel_generates_outside_the_checkout(clean_python: Path, tmp_path: Path) -> None:
    code = (
        "from pathlib import Path\n"
        "from raydix.runtime.cli.demo_checkpoint import write_demo_checkpoint\n"
        "write_demo_checkpoint(Path('checkpoint'))\n"
    )
    output_of(clean_python, code, tmp_path)
    command = [
        str(clean_python.parent / "raydix"),
        "generate",
        "checkpoint",
        "--prompt",
        "Hello",
        "--max-tokens",
        "8",
    ]
    result = subprocess.run(
        [*command, "--ignore-eos", "--json"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert '"finish_reason": "length"' in result.stdout


def test_a_job_can_bring_every_dependency_but_ray() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    brought = yaml.safe_load((ROOT / "examples/runtime_env.yaml").read_text())["pip"]
    assert brought == [each for each in project["dependencies"] if not each.startswith("ray[")]
