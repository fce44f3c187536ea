"""The dispatch backends that installed packages bring, by name. Imports none of them."""

from importlib.metadata import EntryPoint, entry_points

ENTRY_POINT_GROUP = "raydix.dispatch"


def installed_plugins() -> dict[str, EntryPoint]:
    """The entry points of all plugins, in order of their names."""
    points = entry_points(group=ENTRY_POINT_GROUP)
    return {point.name: point for point in sorted(points, key=lambda point: point.name)}
