"""Draws what a benchmark found: how its times are distributed, and what came from which tier."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from raydix.errors import ConfigError
from raydix.runtime.cli.load.report import Outcome, Slo, Summary, tier_shares

_WIDTH_INCHES, _HEIGHT_INCHES = 12.0, 7.0


def require_matplotlib() -> None:
    """Raise ConfigError without it: better before a benchmark than after."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            "--png needs matplotlib, which is not installed. Run pip install 'raydix[bench]'."
        ) from error


def draw(
    path: Path,
    outcomes: Mapping[str, Sequence[Outcome]],
    summaries: Mapping[str, Summary],
    slo: Slo | None,
) -> None:
    """Write the picture of one or more loads, by their titles, as PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    picture = Figure(figsize=(_WIDTH_INCHES, _HEIGHT_INCHES), layout="constrained")
    FigureCanvasAgg(picture)
    panels = picture.subplot_mosaic([["ttft", "tpot", "latency"], ["course", "course", "tiers"]])
    ttft, tpot, latency, course = (panels[name] for name in ("ttft", "tpot", "latency", "course"))

    for title, load in outcomes.items():
        counted = [each for each in load if each.is_measured and each.error is None]
        _draw_shares(ttft, title, [1e3 * each.ttft_s for each in counted])
        tpots = [1e3 * each.tpot_s for each in counted if each.tpot_s is not None]
        _draw_shares(tpot, title, tpots)
        _draw_shares(latency, title, [1e3 * each.latency_s for each in counted])
        course.scatter(
            [each.sent_s for each in counted], [1e3 * each.ttft_s for each in counted],
            s=6, label=title,
        )  # fmt: skip
    bounds = (None, None, None) if slo is None else (slo.ttft, slo.tpot, slo.latency)
    names = ("TTFT, ms", "TPOT, ms", "latency, ms")
    for panel, name, bound_s in zip((ttft, tpot, latency), names, bounds, strict=True):
        _finish_shares(panel, name, bound_s)

    course.set(xlabel="sent after, s", ylabel="TTFT, ms", ylim=(0, None))
    course.legend(fontsize=8)
    _draw_tiers(panels["tiers"], summaries)
    picture.savefig(path, dpi=100, format="png")


def _draw_shares(panel: Any, title: str, values_ms: Sequence[float]) -> None:
    """Draw the part of the requests that took so long at most."""
    count = len(values_ms)
    panel.step(
        sorted(values_ms), [(i + 1) / count for i in range(count)], where="post", label=title
    )


def _finish_shares(panel: Any, name: str, bound_s: float | None) -> None:
    if bound_s is not None:
        panel.axvline(1e3 * bound_s, color="tab:red", linewidth=1, label="SLO")
    panel.set(xlabel=name, ylabel="part of the requests", xlim=(0, None), ylim=(0, 1))
    panel.legend(fontsize=8)


def _draw_tiers(panel: Any, summaries: Mapping[str, Summary]) -> None:
    """Draw a bar per load, of the parts of its prompt tokens."""
    shares = {title: tier_shares(summary) for title, summary in summaries.items()}
    titles = list(shares)
    bottoms = [0.0] * len(titles)
    for tier in dict.fromkeys(tier for each in shares.values() for tier in each):
        heights = [shares[title].get(tier, 0.0) for title in titles]
        panel.bar(titles, heights, bottom=bottoms, label=tier)
        bottoms = [bottom + height for bottom, height in zip(bottoms, heights, strict=True)]
    panel.set(ylabel="part of the prompt tokens", ylim=(0, 1))
    if any(shares.values()):
        panel.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
