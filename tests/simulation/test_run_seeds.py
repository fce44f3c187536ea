import sys

import pytest

from tests.simulation.run_seeds import main


@pytest.mark.parametrize(
    ("arguments", "status"), [(["--help"], 0), ([], 2), (["1"], 2), (["one", "two"], 2)]
)
def test_help_and_wrong_arguments_end_in_a_usage_line(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    status: int,
) -> None:
    monkeypatch.setattr(sys, "argv", ["run_seeds", *arguments])

    with pytest.raises(SystemExit) as ended:
        main()

    printed = capsys.readouterr()
    assert ended.value.code == status
    assert "usage: run_seeds [-h] [--shared | --pulling | --standing | --sleeping]" in (
        printed.out + printed.err
    )
