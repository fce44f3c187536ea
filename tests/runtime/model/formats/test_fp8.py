"""What configs of FP8 tell of blocks."""

from typing import Any

import pytest

from raydix.errors import CheckpointError
from raydix.runtime.model.formats.fp8 import FP8


@pytest.mark.parametrize("size", [[True, 16], [16, 0], [16], [16.0, 16], "16", 16])
def test_blocks_of_what_is_no_size_are_refused(size: Any) -> None:
    with pytest.raises(CheckpointError, match=r"weight_block_size is .*expected two whole numbers"):
        FP8.read({"quant_method": "fp8", "weight_block_size": size})
