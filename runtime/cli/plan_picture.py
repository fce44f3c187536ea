"""Draws a plan: hits against size for each tier alone, and what tiers find together."""

from pathlib import Path
from typing import Any

from raydix.runtime.foresight.plan.planning import GIB, Mix, Plan

_WIDTH_INCHES, _HEIGHT_INCHES = 12.0, 5.0
_HEAD_ROOM = 1.15
"""Above the bars is the legend."""
_COLOURS = {"L1": "tab:blue", "L2": "tab:orange", "L3": "tab:green"}


def draw_plan(path: Path, plan: Plan, choice: Mix, eviction: str, title: str) -> None:
    """Write the picture as PNG. Needs matplotlib."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    picture = Figure(figsize=(_WIDTH_INCHES, _HEIGHT_INCHES), layout="constrained")
    FigureCanvasAgg(picture)
    picture.suptitle(f"{title}; quick depth", fontsize=10)
    alone, together = picture.subplots(1, 2)
    _draw_alone(alone, plan, eviction)
    _draw_together(together, plan, choice)
    picture.savefig(path, dpi=100, format="png")


def _draw_alone(panel: Any, plan: Plan, eviction: str) -> None:
    """Draw a line per tier and policy, below the cache without bounds."""
    for tier, colour in _COLOURS.items():
        points = [point for point in plan.points if point.tier == tier]
        if not points:
            continue
        gib = [point.num_bytes / GIB for point in points]
        panel.plot(gib, [p.min for p in points], "x--", color=colour, label=f"{tier}, MIN")
        panel.plot(gib, [p.chosen for p in points], "o-", color=colour, label=f"{tier}, {eviction}")
        if any(point.lru != point.chosen for point in points):
            panel.plot(gib, [p.lru for p in points], "x:", color=colour, label=f"{tier}, lru")
    panel.axhline(plan.infinite, color="black", linewidth=1, label="without bounds")
    panel.set_xscale("log", base=2)
    panel.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    panel.set(xlabel="GiB of one tier alone", ylabel="% of prompt tokens", ylim=(0, None))
    panel.legend(fontsize=8)


def _draw_together(panel: Any, plan: Plan, choice: Mix) -> None:
    """Draw a bar per size of L2, behind the chosen L1 and before the largest L3."""
    behind = [mix for mix in plan.mixes if mix.l1_bytes == choice.l1_bytes]
    largest = behind[-1].l3_bytes
    shown = [mix for mix in behind if mix.l3_bytes == largest]
    names = [f"{mix.l2_bytes / GIB:.4g}" for mix in shown]
    bottoms = [0.0] * len(shown)
    for tier, colour in _COLOURS.items():
        heights = [getattr(mix, tier.lower()) for mix in shown]
        panel.bar(names, heights, bottom=bottoms, color=colour, label=tier)
        bottoms = [bottom + height for bottom, height in zip(bottoms, heights, strict=True)]
    panel.axhline(plan.infinite, color="black", linewidth=1)
    l3 = "without bounds" if largest is None else f"{largest / GIB:.4g} GiB"
    panel.set(
        xlabel=f"GiB of L2; L1 {choice.l1_bytes / GIB:.4g} GiB, L3 {l3}",
        ylabel="% of prompt tokens",
        # Of a trace in which nothing comes back there is nothing to draw.
        ylim=(0, _HEAD_ROOM * max(1.0, plan.infinite)),
    )
    panel.legend(fontsize=8, loc="upper left", ncols=len(_COLOURS))
