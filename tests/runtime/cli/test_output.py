import json

import pytest

from raydix.runtime.cli.output import print_json, print_values, standard_output


def test_json_output_is_not_mixed_with_prints(capsys: pytest.CaptureFixture[str]) -> None:
    with standard_output(as_json=True) as (console, stdout):
        print("a line of Ray")
        console.print("a table")
        print_json({"value": 1}, stdout)
    printed = capsys.readouterr()
    assert json.loads(printed.out) == {"value": 1}
    assert "a line of Ray" in printed.err
    assert "a table" in printed.err


def test_nested_values_are_printed_one_per_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_values({"scheduler": {"num_plans": 3, "cpu_s": 0.5}, "l2": 7}, as_json=False)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines == [["l2", "7"], ["scheduler.cpu_s", "0.5"], ["scheduler.num_plans", "3"]]
