"""Which tests run in the same process, where pytest has several (`-n`)."""

import pytest

RAY = "ray"
"""The group of all files that start Ray: its tests share one cluster and one engine."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep a file's tests together, because they share fixtures, and all those that start Ray.

    They begin first: they wait more than they compute, and so cost the other processes little.
    """
    if not config.pluginmanager.hasplugin("xdist"):
        return
    starts_ray = {item.path for item in items if item.get_closest_marker("ray") is not None}
    for item in items:
        group = RAY if item.path in starts_ray else str(item.path.relative_to(config.rootpath))
        item.add_marker(pytest.mark.xdist_group(group))
    items.sort(key=lambda item: item.path not in starts_ray)
