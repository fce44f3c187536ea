import os
import subprocess
import sys

import pytest

pytest.importorskip("triton")


def run(*command: str) -> subprocess.CompletedProcess[str]:
    """Run a module in a process of its own, in which Triton compiles."""
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    environment.pop("TRITON_INTERPRET", None)
    return subprocess.run(
        [sys.executable, "-m", *command],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )


@pytest.mark.parametrize(
    ("shape", "ranks", "choices"),
    [
        ("dense_l16", "1", []),
        ("moe_l12", "2", []),
        ("moe_l12", "2/2", []),
        ("moe_l12_fp8", "1/4", ["auto", "native"]),
        ("moe_l12_fp8", "1", ["auto", "native"]),
        ("moe_l12_awq", "1", ["auto", "native"]),
        ("gpt-oss-20b", "1", []),
        ("latent_l61", "4", []),
        ("gemma-2-9b", "1", []),
        ("qwen3.6-35b-a3b-l12", "1", []),
        ("dense_l16", "2", ["fp8_e4m3"]),
        ("gpt-oss-20b", "1", ["fp8_e4m3"]),
    ],
)
def test_steps_of_any_size_launch_what_was_foreseen(
    shape: str, ranks: str, choices: list[str]
) -> None:
    done = run("tests.kernels.traced_steps", shape, ranks, "25", *choices)

    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "variants, of which" in done.stdout


def test_what_one_process_compiles_another_finds(
    tmp_path: "os.PathLike[str]", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))

    first, second = (run("tests.kernels.compile_few") for _ in range(2))

    assert first.returncode == 0, first.stderr[-2000:]
    assert second.returncode == 0, second.stderr[-2000:]
    assert first.stdout.split() == ["0", "of", "6", "were", "there"]
    assert second.stdout.split() == ["6", "of", "6", "were", "there"]
