"""Owners of services look often."""

import pytest

from raydix.runtime.actors.service import engine, owner


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner, "_LOOK_S", 0.01)
    monkeypatch.setattr(engine, "_ASK_AGAIN_S", 0.01)
    monkeypatch.setattr(owner, "_FOUND_S", 0.0)
