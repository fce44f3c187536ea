"""A package that is imported by two threads at once, and replaces itself meanwhile."""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from raydix.runtime.model.late_import import import_late

PACKAGE = """
import sys
from types import ModuleType
from tests.runtime.model.test_late_import import PAUSE
whole = ModuleType(__name__)
whole.CONTENT = "whole"
PAUSE.take()
sys.modules[__name__] = whole
"""


class Pause:
    """Holds the import up until another thread waits for it."""

    def __init__(self) -> None:
        self.is_under_way = threading.Event()
        self.may_end = threading.Event()

    def take(self) -> None:
        self.is_under_way.set()
        assert self.may_end.wait(10)


PAUSE = Pause()


def test_who_waits_for_an_import_gets_what_it_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "replaces_itself.py").write_text(PACKAGE)
    monkeypatch.syspath_prepend(tmp_path)

    def import_second() -> Any:
        assert PAUSE.is_under_way.wait(10)
        threading.Timer(0.1, PAUSE.may_end.set).start()
        return import_late("replaces_itself")

    with ThreadPoolExecutor(2) as threads:
        both = [threads.submit(import_late, "replaces_itself"), threads.submit(import_second)]
        modules: list[ModuleType] = [each.result(20) for each in both]
    assert [each.CONTENT for each in modules] == ["whole", "whole"]
    del sys.modules["replaces_itself"]
