"""Which Ray cluster a process joins: one that runs already, or a private one of its own."""

import json
import logging
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import ray
from ray._private.authentication.authentication_token_setup import (
    maybe_enable_token_auth_if_token_available,
)
from ray.exceptions import RayError

from raydix.errors import ConfigError, EngineDead
from raydix.runtime.actors.bootstrap import reaper
from raydix.runtime.actors.private_folder import PrivateFolder, read_of_living_owners
from raydix.runtime.actors.supervision.spawn import NAMESPACE

_OBJECT_STORE_BYTES = 100 << 20  # nothing of ours passes through it
_DIAL_S = 10.0
_REGISTER = "engines.json"
_AUTHENTICATION_LOG = "ray._private.authentication"


class PrivateCluster:
    """Owns: a Ray cluster on this host that this process started, and its folder.

    When this process ends, however it ends, a reaper ends what Ray's own agents leave for half a
    minute.
    """

    def __init__(self) -> None:
        self._folder = PrivateFolder()
        reap = [sys.executable, "-I", "-S", reaper.__file__, self._folder.path, str(os.getpid())]
        self._reaper = subprocess.Popen(reap, stdin=subprocess.PIPE, start_new_session=True)
        _on_lasting_thread(
            lambda: ray.init(
                address="local",
                namespace=NAMESPACE,
                include_dashboard=False,
                object_store_memory=_OBJECT_STORE_BYTES,
                # Ray opens its own folder to everybody.
                _temp_dir=f"{self._folder.path}/ray",
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
        )

    def register(self, engine: str) -> None:
        """Let other processes of this user find the engine by its name."""
        address = ray.get_runtime_context().gcs_address
        Path(self._folder.path, _REGISTER).write_text(
            json.dumps({"engine": engine, "address": address})
        )

    def stop(self) -> None:
        """End the cluster."""
        ray.shutdown()
        if self._reaper.stdin is not None:
            self._reaper.stdin.close()
        self._folder.abandon()


def join_cluster(address: str | None) -> PrivateCluster | None:
    """Make this process part of a cluster. A private one is returned, so that it can be ended.

    Raises ConfigError if the named cluster cannot be reached.
    """
    if ray.is_initialized():
        return None
    address = address or _job_address()
    if address is None:
        return PrivateCluster()
    _connect(address)
    return None


def find_cluster(address: str | None, engine: str) -> None:
    """Join the cluster where `engine` runs. Raises EngineDead if none is known."""
    if ray.is_initialized():
        return
    address = address or _job_address()
    if address is None:
        address = _registered_address(engine)
        # As Ray does for a cluster that it finds by itself; a private one has token authentication
        # by default, which Ray would announce with a warning.
        logging.getLogger(_AUTHENTICATION_LOG).setLevel(logging.ERROR)
        maybe_enable_token_auth_if_token_available(warn_if_disabled=False)
    if address is None:
        raise EngineDead(
            f"no engine named {engine} was found on this host. Start one, or give the address of "
            f"its Ray cluster."
        )
    _connect(address)


def _connect(address: str) -> None:
    _require_listener(address)
    try:
        ray.init(
            address=address, namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR
        )
    except (ConnectionError, ValueError, RuntimeError, RayError) as error:
        raise ConfigError(
            f"the Ray cluster at {address} refuses this process: {error}. If it has token "
            f"authentication, set "
            "RAY_AUTH_MODE=token and provide its token; if it has not, set RAY_AUTH_MODE=disabled."
        ) from error


def _require_listener(address: str) -> None:
    """Raise ConfigError if nobody listens there; Ray itself would try for two minutes."""
    host, _, port = address.rpartition(":")
    if "/" in host or not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), _DIAL_S).close()
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"no Ray cluster answers at {address}: {error}. Start one, or correct the address."
        ) from None


def _on_lasting_thread(start: Callable[[], object]) -> None:
    """Call `start` on a thread that never ends.

    The kernel ends Ray's processes with the thread that started them.
    """
    result: Future[object] = Future()

    def run() -> None:
        try:
            result.set_result(start())
        except BaseException as error:  # noqa: BLE001  it belongs to the thread that waits
            result.set_exception(error)
        threading.Event().wait()

    threading.Thread(target=run, name="raydix-cluster", daemon=True).start()
    result.result()


def _job_address() -> str | None:
    """The cluster of a submitted job, from the variable that Ray sets for it."""
    return os.environ.get("RAY_ADDRESS") or None


def _registered_address(engine: str) -> str | None:
    for content in read_of_living_owners(_REGISTER):
        address = _address_of(engine, content)
        if address is not None:
            return address
    return None


def _address_of(engine: str, content: bytes) -> str | None:
    """The address that `PrivateCluster.register` wrote; None for another engine's, or nonsense."""
    try:
        entry = json.loads(content)
    except (ValueError, RecursionError):
        return None
    match entry:
        case {"engine": str(name), "address": str(address)} if name == engine:
            return address
    return None
