"""S3 for tests: moto's server, which knows the protocol's semantics; its speed says nothing."""

import importlib.util
import os
import subprocess
import sys
import time
import urllib.request
from typing import Any

import pytest

from raydix.runtime.config.l3 import S3L3Section
from raydix.runtime.storage.backend import StorageBackend
from raydix.runtime.storage.create import create_backend
from tests.free_ports import free_port
from tests.runtime.storage.stores import NAMESPACE, Store, make_key

CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_REGION": "us-east-1",
}


class MotoServer:
    """Owns: the process. Skips the test that wants one where moto or obstore is not installed."""

    def __init__(self) -> None:
        for package in ("obstore", "moto", "flask"):
            if importlib.util.find_spec(package) is None:
                pytest.skip(f"{package} is not installed (pip install 'raydix[s3]' 'moto[server]')")
        os.environ.update(CREDENTIALS)
        self.num_buckets = 0
        self.port = free_port()
        self.start()

    def start(self) -> None:
        """Start, empty, on the same port as before, and wait until it answers."""
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]
        self.process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

        give_up_s = time.monotonic() + 60
        while True:
            try:
                urllib.request.urlopen(
                    f"http://127.0.0.1:{self.port}/moto-api/", timeout=10
                ).close()
                return
            except OSError:
                assert self.process.poll() is None, "moto has ended"
                assert time.monotonic() < give_up_s, "moto does not answer"
                time.sleep(0.05)  # a process that starts sends no word of it

    def make_store(self) -> "S3Store":
        """A bucket of its own."""
        self.num_buckets += 1
        bucket = f"bucket-{self.num_buckets}"
        url = f"http://127.0.0.1:{self.port}/{bucket}"
        urllib.request.urlopen(urllib.request.Request(url, method="PUT"), timeout=20).close()
        return S3Store(f"http://127.0.0.1:{self.port}", bucket)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


class S3Store(Store):
    def __init__(self, endpoint: str, bucket: str) -> None:
        self.endpoint = endpoint
        self.bucket = bucket

    def make(self, max_bytes: int | None = None) -> StorageBackend:
        if max_bytes is not None:
            pytest.skip("a bucket has no bound")
        section = S3L3Section(
            backend="s3", bucket=self.bucket, endpoint=self.endpoint, prefix="l3", timeout_s=20.0
        )
        return create_backend(section)

    def _client(self) -> Any:
        import obstore.store

        return obstore.store.S3Store(
            self.bucket,
            endpoint=self.endpoint,
            virtual_hosted_style_request=False,
            client_options={"allow_http": True},
        )

    def _path(self, name: int) -> str:
        key = make_key(name).hex()
        return f"l3/{NAMESPACE.hex}/0/{key[:2]}/{key}"

    def raw(self, name: int) -> bytes | None:
        try:
            return bytes(self._client().get(self._path(name)).bytes())
        except FileNotFoundError:
            return None

    def set_raw(self, name: int, data: bytes) -> None:
        self._client().put(self._path(name), data)
