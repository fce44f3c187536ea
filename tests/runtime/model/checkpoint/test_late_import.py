"""Packages that are imported late: by two threads at once, or not at all."""

import importlib.util
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from raydix.runtime.model.checkpoint.late_import import hidden, import_late

PACKAGE = """
import sys
from types import ModuleType
from tests.runtime.model.checkpoint.test_late_import import PAUSE
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


def test_a_hidden_package_is_not_there_until_it_is_shown_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hides.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)

    with hidden("hides"):
        assert importlib.util.find_spec("hides") is None
        with pytest.raises(ImportError):
            import_late("hides")
    assert import_late("hides").__name__ == "hides"

    with pytest.raises(AssertionError, match="hides is imported already"), hidden("hides"):
        pass
    del sys.modules["hides"]
