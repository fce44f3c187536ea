"""DeepEP itself, where it is installed."""

from pathlib import Path

import pytest

from tests.moe.library_conformance import CLAIMS, Claim, check_claim


@pytest.mark.multi_gpu
@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.__name__)
def test_it_carries_tokens_and_is_refused_by_all_where_one_cannot_use_it(
    claim: Claim, tmp_path: Path
) -> None:
    check_claim(claim, "raydix.moe.dispatch.library:DEEPEP", tmp_path)
