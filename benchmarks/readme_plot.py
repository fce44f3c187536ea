"""Draw the README's plot, light and dark: how long the first token takes by where its prompt is.

python -m benchmarks.readme_plot   # writes docs/images/first-token-*.svg; needs matplotlib
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.records.command_line import run
from benchmarks.records.record import REPOSITORY
from benchmarks.records.rows import with_unit
from raydix.errors import ConfigError

RECORD = REPOSITORY / "benchmarks" / "results" / "reload.json"
IMAGES = REPOSITORY / "docs" / "images"
BARS = {
    "in GPU pages (L1)": "TTFT, L1 hit, page 64",
    "in host memory (L2)": "TTFT, L2 hit, page 64",
    "nowhere, so computed": "TTFT, cold and beside backups, page 64",
}
"""Where the prompt's pages are, and the figure that says how long its first token takes then."""
_TITLE = "Time to the first token, when 16,384 of a prompt's 16,400 tokens are ..."


@dataclass(frozen=True, slots=True, kw_only=True)
class Theme:
    """The colours on a light or a dark page."""

    name: str
    text: str
    cached: str
    computed: str


THEMES = (
    Theme(name="light", text="#1f2328", cached="#0969da", computed="#afb8c1"),
    Theme(name="dark", text="#e6edf3", cached="#4493f8", computed="#6e7681"),
)


def draw(record: Mapping[str, Any], theme: Theme, path: Path) -> None:
    """Write one theme's picture. Raises ConfigError without matplotlib."""
    # Imported here: the documents' tables are made without matplotlib.
    try:
        from matplotlib import rc_context
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ConfigError("Pictures need matplotlib: pip install matplotlib.") from error

    by_name = {figure["name"]: figure for figure in record["figures"]}
    figures = [by_name[name] for name in BARS.values()]
    colors = [theme.cached] * (len(figures) - 1) + [theme.computed]

    picture = Figure(figsize=(7.2, 1.9), layout="constrained")
    FigureCanvasSVG(picture)
    panel = picture.subplots()
    bars = panel.barh(list(BARS), [figure["value"] for figure in figures], color=colors, height=0.6)
    panel.bar_label(
        bars,
        [f"{with_unit(figure['value'], figure['unit'])}" for figure in figures],
        color=theme.text,
        padding=4,
    )

    panel.invert_yaxis()
    panel.set_title(_TITLE, color=theme.text, fontsize=10, loc="left", x=-0.3)
    panel.tick_params(colors=theme.text, length=0)
    panel.xaxis.set_visible(False)
    panel.margins(x=0.12)
    panel.spines[:].set_visible(False)

    # Text stays text, and nothing depends on the day: the same record gives the same file.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "raydix"}):
        picture.savefig(path, transparent=True, metadata={"Date": None, "Creator": None})


def main() -> int:
    """Draw both themes."""
    record = json.loads(RECORD.read_text())
    for theme in THEMES:
        draw(record, theme, IMAGES / f"first-token-{theme.name}.svg")
    return 0


if __name__ == "__main__":
    run(main)
