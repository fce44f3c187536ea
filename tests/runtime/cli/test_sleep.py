"""`raydix switch` without an engine: what it refuses before it asks any."""

import pytest

from raydix.errors import BadRequest
from raydix.runtime.cli.sleep import switch


def test_an_engine_takes_no_turns_with_itself() -> None:
    # It would be drained, and pause its streams, only to be woken again.
    with pytest.raises(BadRequest, match="both left; expected two"):
        switch("left", "left")
