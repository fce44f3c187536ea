import socket
import threading

import pytest
import ray

from raydix.errors import ConfigError, EngineDead
from raydix.runtime.actors.bootstrap import cluster
from raydix.runtime.actors.bootstrap.cluster import PrivateCluster, find_cluster, join_cluster
from raydix.runtime.actors.bootstrap.cluster_address import require_cluster
from raydix.runtime.config.sections import RaySection


@pytest.fixture(autouse=True)
def _outside_of_any_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: False)


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def test_an_address_where_nobody_listens_is_refused_at_once() -> None:
    address = f"127.0.0.1:{closed_port()}"
    with pytest.raises(ConfigError, match=f"no Ray cluster answers at {address}"):
        join_cluster(address)
    with pytest.raises(ConfigError, match=f"no Ray cluster answers at {address}"):
        find_cluster(address, "raydix")


def test_who_names_no_running_engine_is_told_which_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(cluster, "running_names", lambda: ["prod", "test"])
    with pytest.raises(
        EngineDead, match=r"no engine named prd .* Running here: prod, test\. Start"
    ):
        find_cluster(None, "prd")
    monkeypatch.setattr(cluster, "running_names", list)
    with pytest.raises(
        EngineDead, match=r"prd was found on this host\. Start one; or say .* as NAME@HOST:PORT"
    ):
        find_cluster(None, "prd")


def test_a_port_that_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigError, match="no Ray cluster answers"):
        join_cluster("127.0.0.1:99999999")


def test_the_address_of_the_job_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    address = f"127.0.0.1:{closed_port()}"
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(ConfigError, match=address):
        join_cluster(None)


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("nonsense", "expected HOST:PORT"),
        ("127.0.0.1", "expected HOST:PORT"),
        (":6379", "expected HOST:PORT"),
        ("127.0.0.1:x", "expected HOST:PORT"),
        ("http://127.0.0.1:8265", "is a dashboard"),
        ("ray://127.0.0.1:10001", "Ray Client"),
        ("local", "Leave the address out"),
    ],
)
def test_what_is_no_address_is_told_so_at_once(address: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        join_cluster(address)


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b""])
def test_what_answers_but_is_no_cluster_is_refused(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            connection.recv(1024)
            connection.sendall(answer)
            connection.close()

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(ConfigError, match="is no Ray cluster"):
            join_cluster(f"127.0.0.1:{server.getsockname()[1]}")
        thread.join()


@pytest.mark.ray
def test_a_cluster_is_known_by_what_it_answers(
    ray_cluster: PrivateCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # inside of this one, after all
    require_cluster(ray.get_runtime_context().gcs_address)


def test_without_a_cluster_on_this_host_auto_finds_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**_: object) -> None:
        raise ConnectionError("Could not find any running Ray instance.")

    monkeypatch.setattr(ray, "init", fail)
    with pytest.raises(ConfigError, match="no Ray cluster runs on this host"):
        join_cluster("auto")


@pytest.mark.parametrize("name", ["metrics_port", "dashboard_port"])
def test_a_port_that_is_taken_is_refused_before_anything_starts(name: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"ray.{name} is {port}, which is taken"):
            PrivateCluster(settings=RaySection(**{name: port}))


def test_ports_are_refused_for_a_cluster_that_has_its_own() -> None:
    with pytest.raises(ConfigError, match="are for a cluster that Raydix starts itself"):
        join_cluster("127.0.0.1:6379", RaySection(metrics_port=9000))


def test_metrics_may_stay_within_the_engine_on_any_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(cluster, "named_cluster", lambda _: None)
    assert join_cluster(None, RaySection(export_metrics=False)) is None
