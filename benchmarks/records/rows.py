"""What the tables of figures have in common: how a value, its bars and its device are written."""

from collections.abc import Mapping
from typing import Any


def device(record: Mapping[str, Any]) -> str:
    """What was measured: the GPU, or else the processor."""
    config = record["config"]
    return str(config.get("gpu") or config.get("device") or record["machine"]["processor"])


def cells(figure: Mapping[str, Any]) -> str:
    """A figure's three cells of a table: its value, its bars, and what was measured beside it.

    A value on the wrong side of its bar is in bold.
    """
    value, unit = float(figure["value"]), str(figure["unit"])
    shown = with_unit(value, unit)
    is_met = figure.get("min_value", value) <= value <= figure.get("max_value", value)

    bars = [f"≤ {with_unit(figure['max_value'], unit)}"] if "max_value" in figure else []
    bars += [f"≥ {with_unit(figure['min_value'], unit)}"] if "min_value" in figure else []

    beside = ""
    if "baseline" in figure:
        beside = f"{with_unit(figure['baseline'], unit)}, {figure['baseline_name']}"
    return f"{shown if is_met else f'**{shown}**'} | {', '.join(bars)} | {beside}"


def with_unit(value: float, unit: str) -> str:
    """A value with three figures and its unit; a ratio has none."""
    number = f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return number if unit == "1" else f"{number} {unit}"
