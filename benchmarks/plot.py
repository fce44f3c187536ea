"""Draw records as PNG: a panel per unit, a bar per figure, its limit and what was beside it.

python -m benchmarks.plot benchmarks/results/reload.json ...   # reload.png beside it, and so on

Records of `raydix bench --json` have the same shape. Needs matplotlib.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from annotated_types import MinLen
from pydantic import TypeAdapter, ValidationError

from benchmarks.records.command_line import make_parser, run
from benchmarks.records.record import Figure
from raydix.errors import BadRequest, ConfigError

_INCHES_PER_FIGURE = 0.35
_WIDTH_INCHES = 10.0


@dataclass(frozen=True, kw_only=True)
class Record:
    """What is drawn of one."""

    benchmark: str
    figures: Annotated[list[Figure], MinLen(1)]
    commit: str | None = None
    """The commit; None: it was measured with what is installed, which has a version."""
    version: str | None = None


_RECORD = TypeAdapter(Record)


def read_record(path: Path) -> Record:
    """One record. Raises BadRequest for a file that has none."""
    try:
        return _RECORD.validate_json(path.read_bytes())
    except OSError as error:
        raise BadRequest(f"{path} cannot be read: {error.strerror}.") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise BadRequest(
            f"{path}: {where or 'the file'}: {first['msg']}; expected the record of a benchmark."
        ) from error


def draw(record: Record, path: Path) -> None:
    """Write one record's picture. Raises ConfigError without matplotlib, or if it cannot write."""
    # Imported here: everything else in this folder does without.
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure as Picture
    except ModuleNotFoundError as error:
        raise ConfigError("Pictures need matplotlib: pip install matplotlib.") from error

    by_unit: dict[str, list[Figure]] = {}
    for figure in record.figures:
        by_unit.setdefault(figure.unit, []).append(figure)

    counts = [len(figures) for figures in by_unit.values()]
    height = 1.5 * len(counts) + _INCHES_PER_FIGURE * sum(counts)
    picture = Picture(figsize=(_WIDTH_INCHES, height), layout="constrained")
    FigureCanvasAgg(picture)
    panels = picture.subplots(
        len(counts), squeeze=False, height_ratios=[count + 2 for count in counts]
    )[:, 0]

    for panel, (unit, figures) in zip(panels, by_unit.items(), strict=True):
        _draw_panel(panel, unit, figures)
    picture.suptitle(", ".join(filter(None, (record.benchmark, record.commit or record.version))))
    try:
        picture.savefig(path, dpi=100)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}.") from error


def _draw_panel(panel: Any, unit: str, figures: list[Figure]) -> None:
    positions = range(len(figures))
    panel.barh(positions, [figure.value for figure in figures], color="tab:blue")
    panel.set_yticks(positions, [figure.name for figure in figures], fontsize=8)
    panel.invert_yaxis()
    panel.set_xlabel("" if unit == "1" else unit)

    bars = [(figure.max_value, figure.min_value) for figure in figures]
    baselines = [(figure.baseline,) for figure in figures]
    for marked, color, label in ((bars, "tab:red", "bar"), (baselines, "black", "beside it")):
        marks = [
            (value, row)
            for row, values in enumerate(marked)
            for value in values
            if value is not None
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
