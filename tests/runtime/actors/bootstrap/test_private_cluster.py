from pathlib import Path

import pytest

from raydix.runtime.actors.bootstrap import reaper
from raydix.runtime.actors.bootstrap.cluster import PrivateCluster

pytestmark = pytest.mark.ray


def commands_of(cluster: PrivateCluster) -> list[str]:
    """What Ray's processes of the cluster are called."""
    folder = str(Path(cluster.ray_folder).parent)
    return [Path(f"/proc/{pid}/cmdline").read_bytes().decode() for pid in reaper.left_over(folder)]


def test_nothing_is_started_that_no_engine_uses(ray_cluster: PrivateCluster) -> None:
    commands = commands_of(ray_cluster)
    assert any("DashboardAgent" in each for each in commands), "it exports metrics"
    unused = ("/dashboard.py", "/monitor.py", "/log_monitor.py")
    assert [each for each in commands if any(name in each for name in unused)] == []


def test_the_agent_does_not_look_for_a_dashboard_again_and_again(
    ray_cluster: PrivateCluster,
) -> None:
    log = Path(ray_cluster.ray_folder, "session_latest", "logs", "dashboard_agent.log")
    text = log.read_text()
    assert text, "it has begun"
    assert "Get dashboard http address failed" not in text
