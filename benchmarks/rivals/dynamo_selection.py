"""Dynamo's SelectionService over nodes of a virtual clock, in a process of another Python."""

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.cores.routed_nodes import KeyNews, RoutedNode
from raydix.runtime.foresight.simulator.clock import Clock
from raydix.runtime.foresight.traces import BLOCK_TOKENS, TraceRequest

_SCRIPT = Path(__file__).with_name("selection_process.py")


class DynamoSelection:
    """Owns: the process."""

    def __init__(self, python: Path) -> None:
        self._process = subprocess.Popen(
            [str(python), str(_SCRIPT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=os.environ | {"DYN_LOG": "error"},
        )

    def __enter__(self) -> "DynamoSelection":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def begin(self, nodes: Sequence[RoutedNode], clock: Clock, *, until_s: float) -> None:
        """Have the service follow the nodes' events."""
        self._say(num_nodes=len(nodes), block_tokens=BLOCK_TOKENS)
        self._answer()

    def choose(self, number: int, request: TraceRequest) -> int:
        """The service's choice."""
        blocks = list(request.blocks)
        if request.partial_block is not None:
            blocks.append(request.partial_block)
        self._say(kind="choose", number=number, blocks=blocks, num_tokens=request.num_tokens)
        return int(self._answer())

    def note_first_token(self, number: int) -> None:
        """It takes nothing any more, as decodes are in nobody's way here: that favours Dynamo."""
        self._say(kind="end", number=number)

    def note_end(self, number: int) -> None:
        """Nothing is booked any more."""

    def note_keys(self, news: KeyNews) -> None:
        """An event of vLLM's form."""
        self._say(
            kind="keys",
            node=news.node,
            removed=list(news.removed),
            stored=list(news.stored),
            parent=news.parent,
        )

    def _say(self, **message: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message) + "\n")
        self._process.stdin.flush()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(
                "Dynamo's process has ended; expected an answer. Its Python needs "
                "ai-dynamo-runtime, pyzmq and msgpack, as `tests/dynamo_events.sh run` installs "
                "them; `PYTHON benchmarks/rivals/selection_process.py` says what else is wrong."
            )
        return json.loads(line)
