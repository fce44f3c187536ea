"""An HTTP server around an in-process engine with a tiny checkpoint."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai

from raydix.runtime.actors.links.address import TcpAddress
from raydix.runtime.api.outputs import RequestOutput
from raydix.runtime.api.tokenizer import load_tokenizer
from raydix.runtime.cli.demo_checkpoint import write_demo_checkpoint
from raydix.runtime.config.loading import load_config
from raydix.runtime.server.app import build_app
from raydix.runtime.server.keys import Keys, read_keys
from raydix.runtime.server.listener import listening
from raydix.runtime.testing.engine import InProcessEngine, in_process_engine
from raydix.runtime.testing.llm import InProcessLLM

MODEL = "demo"
PAGE_SIZE = 16
NOW = 1_700_000_000
ALICE, BOB = "alice-key-0123456789", "bob-key-0123456789ab"
MONITOR, ADMIN = "monitor-key-01234567", "admin-key-0123456789"
KEYS = {"tenants": {"alice": ALICE, "bob": [BOB]}, "monitor": MONITOR, "admin": ADMIN}


def engine_keys() -> Keys:
    """Two tenants, a monitor and an admin."""
    return read_keys(KEYS, "the test")


@dataclass(frozen=True)
class Server:
    """A server on a loopback port, and the engine behind it."""

    url: str
    engine: InProcessEngine
    llm: InProcessLLM

    def client(self, key: str = "none") -> openai.AsyncOpenAI:
        """OpenAI's own client; it never tries again, so that every error is seen."""
        return openai.AsyncOpenAI(
            base_url=f"{self.url}/v1",
            api_key=key,
            max_retries=0,
            # Without TLS there is no need to read certificates, which takes long.
            http_client=httpx.AsyncClient(verify=False, timeout=60),
        )

    def sync_client(self, key: str = "none") -> openai.OpenAI:
        """The same without a loop; its calls need a thread of their own."""
        return openai.OpenAI(
            base_url=f"{self.url}/v1",
            api_key=key,
            max_retries=0,
            http_client=httpx.Client(verify=False, timeout=60),
        )

    def http(self, key: str | None = None) -> httpx.AsyncClient:
        """A client of plain HTTP."""
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        return httpx.AsyncClient(base_url=self.url, headers=headers, timeout=60, verify=False)

    async def direct(self, prompt: Any, **options: Any) -> RequestOutput:
        """What `AsyncLLM` gives, past the server; `options` besides sampling: `cache_salt`."""
        salt = options.pop("cache_salt", None)
        params = {"temperature": 0.0, "output_kind": "final", **options}
        [output] = [each async for each in self.llm.generate(prompt, params, cache_salt=salt)]
        return output


@contextlib.asynccontextmanager
async def serving(
    folder: Path,
    keys: Keys | None = None,
    drain_s: float = 1.0,
    origins: tuple[str, ...] = (),
    **sections: Any,
) -> AsyncIterator[Server]:
    """A server for the test; `sections`: of the configuration."""
    base = {
        "model": {"path": str(folder), "max_model_len": 256},
        "cache": {"l1": {"num_pages": 128}, "l2": None, "page_size": PAGE_SIZE},
    }
    config = load_config(base, sections)
    tokenizer = load_tokenizer(folder)

    async with in_process_engine(config) as engine:
        llm = InProcessLLM(engine, await engine.connect(tokenizer))
        app = build_app({MODEL: llm}, keys, wall_clock=lambda: float(NOW), origins=origins)
        async with listening(app, TcpAddress("127.0.0.1", 0), drain_s) as url:
            yield Server(url, engine, llm)


def write_checkpoint(folder: Path) -> Path:
    """A byte-level Qwen3-MoE with a chat template."""
    write_demo_checkpoint(folder, seed=3)
    return folder
