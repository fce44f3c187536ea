"""Write the tables of measured figures from the records under `benchmarks/results`.

docs/benchmarks.md has every figure that has a bar, README.md those of
`benchmarks/records/headlines.py`.

python -m benchmarks.table           # writes both
python -m benchmarks.table --check   # exits 1 if either says anything but what the records say
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.records.command_line import make_parser, run
from benchmarks.records.headlines import render_headlines
from benchmarks.records.record import REPOSITORY, RESULTS
from benchmarks.records.rows import cells, device

BEGIN, END = "<!-- benchmarks: made by python -m benchmarks.table -->", "<!-- end of benchmarks -->"
_HEAD = ("| what | measured | bar | beside it in the same run |", "|---|---|---|---|")

Record = Mapping[str, Any]


def read_records(folder: Path) -> list[Record]:
    """All records of a folder, by name."""
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]


def render(records: Sequence[Record]) -> str:
    """A Markdown table of every figure that has a bar, by benchmark."""
    lines = list(_HEAD)

    for record in records:
        figures = [
            figure for figure in record["figures"] if "max_value" in figure or "min_value" in figure
        ]
        if figures:
            title = f"**{record['benchmark']}** ({device(record)}, {record['commit']})"
            lines.append(f"| {title} | | | |")
            lines += [f"| {figure['name']} | {cells(figure)} |" for figure in figures]
    return "\n".join(lines)


def documents(records: Sequence[Record]) -> dict[Path, str]:
    """Each document that shows figures, as it should be."""
    tables = {
        REPOSITORY / "README.md": render_headlines(records),
        REPOSITORY / "docs" / "benchmarks.md": render(records),
    }
    return {path: insert(path.read_text(), table) for path, table in tables.items()}


def insert(text: str, table: str) -> str:
    """`text` with what lies between the two markers replaced.

    Raises ValueError unless each marker is there once, in order.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end) or BEGIN in rest or END in after:
        raise ValueError(f"expected {BEGIN!r} and then {END!r}, each once")
    return f"{before}{BEGIN}\n{table}\n{END}{after}"


def main() -> int:
    """Write or check."""
    parser = make_parser(__doc__)
    parser.add_argument("--check", action="store_true")
    is_check = parser.parse_args().check

    due = documents(read_records(RESULTS))
    stale = {path: text for path, text in due.items() if path.read_text() != text}
    if is_check:
        return int(bool(stale))
    for path, text in stale.items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    run(main)
