"""Write the README's table of measured figures from the records under `benchmarks/results`.

python -m benchmarks.table           # writes README.md
python -m benchmarks.table --check   # exits 1 if README.md does not say what the records say
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.command_line import make_parser
from benchmarks.record import REPOSITORY, RESULTS

BEGIN, END = "<!-- benchmarks: made by python -m benchmarks.table -->", "<!-- end of benchmarks -->"
_HEAD = ("| what | measured | bar | beside it in the same run |", "|---|---|---|---|")

Record = Mapping[str, Any]


def read_records(folder: Path) -> list[Record]:
    """All records of a folder, by name."""
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]


def render(records: Sequence[Record]) -> str:
    """A Markdown table of every figure that has a bar; values on its wrong side are in bold."""
    lines = list(_HEAD)

    for record in records:
        figures = [
            figure for figure in record["figures"] if "max_value" in figure or "min_value" in figure
        ]
        if figures:
            lines.append(
                f"| **{record['benchmark']}** ({_device(record)}, {record['commit']}) | | | |"
            )
            lines += [_row(figure) for figure in figures]
    return "\n".join(lines)


def insert(text: str, table: str) -> str:
    """`text` with another table between its two markers.

    Raises ValueError unless each marker is there once, in order.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end) or BEGIN in rest or END in after:
        raise ValueError(f"expected {BEGIN!r} and then {END!r}, each once")
    return f"{before}{BEGIN}\n{table}\n{END}{after}"


def _device(record: Record) -> str:
    config = record["config"]
    return str(config.get("gpu") or config.get("device") or record["machine"]["processor"])


def _row(figure: Mapping[str, Any]) -> str:
    value, unit = float(figure["value"]), str(figure["unit"])
    bars = [f"≤ {_with_unit(figure['max_value'], unit)}"] if "max_value" in figure else []
    bars += [f"≥ {_with_unit(figure['min_value'], unit)}"] if "min_value" in figure else []
    is_met = value <= figure.get("max_value", value) and value >= figure.get("min_value", value)
    shown = _with_unit(value, unit)
    beside = ""
    if "baseline" in figure:
        beside = f"{_with_unit(figure['baseline'], unit)}, {figure['baseline_name']}"
    return (
        f"| {figure['name']} | {shown if is_met else f'**{shown}**'} | {', '.join(bars)} | "
        f"{beside} |"
    )


def _with_unit(value: float, unit: str) -> str:
    number = f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return number if unit == "1" else f"{number} {unit}"


def main() -> int:
    """Write or check."""
    parser = make_parser(__doc__)
    parser.add_argument("--check", action="store_true")
    is_check = parser.parse_args().check
    readme = REPOSITORY / "README.md"
    old = readme.read_text()
    new = insert(old, render(read_records(RESULTS)))
    if is_check:
        return int(old != new)
    readme.write_text(new)
    return 0


if __name__ == "__main__":
    sys.exit(main())
