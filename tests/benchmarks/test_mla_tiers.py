from argparse import Namespace

import pytest

from benchmarks.mla_tiers import measure


@pytest.mark.part
def test_ranks_in_processes_of_their_own_keep_one_copy_and_compare_every_byte() -> None:
    figures = measure(Namespace(ranks=2, tokens=192, repeats=2, device="cpu"))

    values = {figure.name: figure for figure in figures}
    assert values["bytes in L2 per token, replicated over shared"].value == 2
    backup = values["backup bytes of a rank, of all bytes of the prefix"]
    assert (backup.value, backup.baseline, backup.is_met) == (2 / 3, 1, True)
    assert values["bytes that a rank loads itself, of all bytes of the prefix"].value == 2 / 3
