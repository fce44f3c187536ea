"""An L2 whose users the test decides."""

from dataclasses import dataclass, field
from typing import Any


@dataclass
class ScriptedL2:
    """An L2 whose users the test decides."""

    name: str
    engines: list[str] = field(default_factory=list)
    is_ended: bool = False

    def describe(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "size_bytes": 1 << 20,
            "ready_bytes": 1 << 10,
            "engines": self.engines,
            "ends_in_s": None if self.engines else 60.0,
            "model_path": "/model",
        }

    def end(self) -> bool:
        self.is_ended = not self.engines
        return self.is_ended
