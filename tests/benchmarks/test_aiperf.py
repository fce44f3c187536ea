"""How AIPerf's environment is made, in a folder of its own."""

from pathlib import Path

import pytest

from benchmarks.aiperf import make_environment
from raydix.errors import ConfigError


def test_a_folder_with_other_files_is_not_emptied_for_an_environment(tmp_path: Path) -> None:
    letter = tmp_path / "letter"
    letter.touch()

    with pytest.raises(ConfigError, match="holds other files; name an empty folder"):
        make_environment(tmp_path)

    assert letter.exists()


def test_an_environment_that_is_there_is_used(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "aiperf").touch()

    assert make_environment(tmp_path) == tmp_path / "bin" / "python"
