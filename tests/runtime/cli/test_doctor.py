import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from raydix.moe.dispatch.library import library_names
from raydix.moe.dispatch.probes import BUILT_IN
from raydix.runtime.config.policies import DispatchBackend


def test_doctor_reports_each_subject_once(
    run: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    run("doctor", "--json")

    findings: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    subjects = [finding["subject"] for finding in findings]
    assert len(subjects) == len(set(subjects))
    assert {
        "python",
        "torch",
        "ray",
        "memory",
        "memfd",
        "/dev/shm",
        "storage: file",
        "device",
    } <= set(subjects)
    assert {"storage: redis", "storage: s3", "storage: hf3fs"} <= set(subjects)
    backends = {*BUILT_IN, *library_names()}
    assert {f"dispatch: {backend}" for backend in backends} <= set(subjects)
    assert set(DispatchBackend) - {DispatchBackend.AUTO} <= backends
    assert all(finding["detail"] for finding in findings)


def test_doctor_needs_no_torch() -> None:
    code = (
        "import sys; from raydix.runtime.cli.doctor import examine; examine(); "
        "print('torch' in sys.modules)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "False"
