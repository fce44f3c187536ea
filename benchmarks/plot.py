"""Draw records as PNG: a panel per unit, a bar per figure, its limit and what was beside it.

python -m benchmarks.plot benchmarks/results/reload.json ...   # reload.png beside it, and so on

Records of `raydix bench --json` have the same shape. Needs matplotlib.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.command_line import make_parser, run
from raydix.errors import BadRequest, ConfigError

_INCHES_PER_FIGURE = 0.35
_WIDTH_INCHES = 10.0


def read_record(path: Path) -> Mapping[str, Any]:
    """One record. Raises BadRequest for a file that has none."""
    try:
        record = json.loads(path.read_bytes())
    except OSError as error:
        raise BadRequest(f"{path} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise BadRequest(f"{path} is no JSON: {error}; expected one record.") from error

    if not isinstance(record, dict) or not isinstance(record.get("figures"), list):
        raise BadRequest(f"{path} has no figures; expected the record of a benchmark.")
    return record


def draw(record: Mapping[str, Any], path: Path) -> None:
    """Write one record's picture. Raises ConfigError without matplotlib."""
    # Imported here: everything else in this folder does without.
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ConfigError("Pictures need matplotlib: pip install matplotlib.") from error

    by_unit: dict[str, list[dict[str, Any]]] = {}
    for figure in record["figures"]:
        by_unit.setdefault(figure["unit"], []).append(figure)

    counts = [len(figures) for figures in by_unit.values()]
    height = 1.5 * len(counts) + _INCHES_PER_FIGURE * sum(counts)
    picture = Figure(figsize=(_WIDTH_INCHES, height), layout="constrained")
    FigureCanvasAgg(picture)
    panels = picture.subplots(
        len(counts), squeeze=False, height_ratios=[count + 2 for count in counts]
    )[:, 0]

    for panel, (unit, figures) in zip(panels, by_unit.items(), strict=True):
        _draw_panel(panel, unit, figures)
    # What is installed has a version and no commit.
    picture.suptitle(f"{record['benchmark']}, {record.get('commit') or record['version']}")
    picture.savefig(path, dpi=100)


def _draw_panel(panel: Any, unit: str, figures: list[dict[str, Any]]) -> None:
    positions = range(len(figures))
    panel.barh(positions, [figure["value"] for figure in figures], color="tab:blue")
    panel.set_yticks(positions, [figure["name"] for figure in figures], fontsize=8)
    panel.invert_yaxis()
    panel.set_xlabel("" if unit == "1" else unit)

    for names, color, label in (
        (("max_value", "min_value"), "tab:red", "bar"),
        (("baseline",), "black", "beside it"),
    ):
        marks = [
            (figure[name], i)
            for i, figure in enumerate(figures)
            for name in names
            if name in figure
        ]
        if marks:
            values, rows = zip(*marks, strict=True)
            panel.scatter(values, rows, marker="|", s=200, color=color, label=label, zorder=3)

    if panel.get_legend_handles_labels()[0]:
        panel.legend(fontsize=8)


def main() -> int:
    """Draw each record that is named."""
    parser = make_parser(__doc__)
    parser.add_argument("records", type=Path, nargs="+")
    for path in parser.parse_args().records:
        draw(read_record(path), path.with_suffix(".png"))
    return 0


if __name__ == "__main__":
    run(main)
