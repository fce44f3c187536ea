"""AsyncLLM and an engine that it knows by an address and a secret alone."""

import asyncio
import pickle
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from raydix.errors import ConfigError, EngineDead
from raydix.runtime.actors import engine_record
from raydix.runtime.actors.bootstrap.remote import gateway_settings
from raydix.runtime.api.client import AsyncLLM
from raydix.runtime.api.tokenizer import load_tokenizer_files
from tests.runtime.api.remote_engine import SECRET, RemoteEngine, remote_engine
from tests.runtime.api.small_tokenizers import byte_level_backend

NAME = "afar"
SILENCE_S = 90.0
GREEDY = {"max_tokens": 5, "temperature": 0}


@pytest.fixture
def model_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkpoint with a tokenizer alone; engines' records lie beside it."""
    monkeypatch.setattr(engine_record, "_ROOT", tmp_path)
    for variable in ("RAYDIX_SECRET", "RAYDIX_SECRET_FILE"):
        monkeypatch.delenv(variable, raising=False)
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    byte_level_backend().save_pretrained(folder)
    return folder


@pytest.fixture
def secret_file(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.touch(0o600)
    path.write_text(SECRET)
    return path


@pytest.fixture
async def remote(model_path: Path) -> AsyncIterator[RemoteEngine]:
    async with remote_engine(NAME, model_path) as engine:
        yield engine


async def tokens_of(engine: AsyncLLM, prompt: object = (1, 2, 3)) -> list[int]:
    ids: list[int] = []
    async for output in engine.generate(prompt, GREEDY):
        ids = output.outputs[0].token_ids
    return ids


async def test_an_address_and_a_secret_are_enough(
    remote: RemoteEngine, secret_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Neither its record nor a cluster is looked at.
    monkeypatch.setattr(engine_record, "_ROOT", Path("/nowhere"))
    async with await AsyncLLM.connect(NAME, remote.address, secret_file=secret_file) as engine:
        assert len(await tokens_of(engine)) == 5
        assert (await engine.stats())["scheduler"]["generation_tokens"] == 5
        assert await engine.flush() == {"l1_pages": 0}
        assert await engine.listens_at() == remote.address


async def test_the_secret_may_come_from_the_environment(
    remote: RemoteEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYDIX_SECRET", SECRET)
    async with await AsyncLLM.connect(NAME, remote.address) as engine:
        assert len(await tokens_of(engine)) == 5


async def test_the_tokenizer_comes_from_the_engine_and_not_from_a_folder_of_that_path(
    remote: RemoteEngine, secret_file: Path, model_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at: list[str] = []
    monkeypatch.setattr("raydix.runtime.api.known_tokenizers.load_tokenizer", looked_at.append)
    async with await AsyncLLM.connect(NAME, remote.address, secret_file=secret_file) as engine:
        ids = await engine.encode("hello")
        assert await engine.decode(ids) == "hello"
    assert looked_at == []


async def test_a_relative_path_of_storage_means_nothing_on_another_host(
    remote: RemoteEngine, secret_file: Path
) -> None:
    async with await AsyncLLM.connect(NAME, remote.address, secret_file=secret_file) as engine:
        with pytest.raises(ConfigError, match="Give an absolute path"):
            await engine.attach_storage({"backend": "file", "path": "l3"})


def test_files_of_a_tokenizer_land_nowhere_else(tmp_path: Path) -> None:
    target = tmp_path / "planted"
    assert load_tokenizer_files({f"../../../../../../../..{target}": b"x"}) is None
    assert not target.exists()


async def test_a_wrong_secret_and_none_are_refused(
    remote: RemoteEngine, secret_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret_file.write_text("x" * 32)
    with pytest.raises(EngineDead, match=r"refuses this client.*same secret"):
        await AsyncLLM.connect(NAME, remote.address, secret_file=secret_file)
    with pytest.raises(ConfigError, match=rf"Connecting to {NAME}@10\.0\.0\.1:1 needs a secret"):
        await AsyncLLM.connect(NAME, "10.0.0.1:1")


async def test_without_a_secret_only_those_who_can_read_the_engines_record_may_connect(
    model_path: Path, secret_file: Path
) -> None:
    async with remote_engine(NAME, model_path, secret=None) as engine:
        async with await AsyncLLM.connect(NAME, engine.address) as client:
            assert len(await tokens_of(client)) == 5
        with pytest.raises(EngineDead, match="refuses this client"):
            await AsyncLLM.connect(NAME, engine.address, secret_file=secret_file)
        with pytest.raises(ConfigError, match="needs a secret"):
            await AsyncLLM.connect("another", engine.address)


def test_beyond_loopback_an_engine_needs_a_secret(model_path: Path, secret_file: Path) -> None:
    assert gateway_settings(None, None) is None
    for local in ("127.0.0.1:0", "localhost:1", "[::1]:2"):
        settings = gateway_settings(local, None)
        assert settings is not None
        assert settings.secret is None
    for open_to_all in (":0", "0.0.0.0:0", "[::]:0", "gpu7:8901", "10.0.0.7:8901"):
        with pytest.raises(ConfigError, match="which other hosts can reach, needs a secret"):
            gateway_settings(open_to_all, None)
        settings = gateway_settings(open_to_all, secret_file)
        assert settings is not None
        assert settings.secret == SECRET.encode()
    for odd in ("8901", "host:", "host:http", "host:70000"):
        with pytest.raises(ConfigError, match="expected HOST:PORT"):
            gateway_settings(odd, secret_file)


async def test_another_engine_at_the_address_is_named(
    remote: RemoteEngine, secret_file: Path
) -> None:
    with pytest.raises(EngineDead, match=f"is named {NAME}, not raydix"):
        await AsyncLLM.connect(address=remote.address, secret_file=secret_file)


async def test_nobody_at_the_address_is_engine_dead_at_once(secret_file: Path) -> None:
    async with asyncio.timeout(5):
        with pytest.raises(EngineDead, match=r"nobody listens at tcp:127\.0\.0\.1:1"):
            await AsyncLLM.connect(NAME, "127.0.0.1:1", secret_file=secret_file)


async def test_a_copy_of_a_handle_carries_where_the_secret_is_and_not_the_secret(
    remote: RemoteEngine, secret_file: Path
) -> None:
    async with await AsyncLLM.connect(NAME, remote.address, secret_file=secret_file) as engine:
        packed = pickle.dumps(engine)
        assert SECRET.encode() not in packed
        async with pickle.loads(packed) as copy:
            assert len(await tokens_of(copy)) == 5


def let_pass(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let time pass by the loop's clock, which every deadline of both ends goes by."""
    loop = asyncio.get_running_loop()
    real = loop.time
    monkeypatch.setattr(loop, "time", lambda: real() + seconds)


async def test_a_client_hears_of_the_end_at_once_and_outlives_its_engine(
    model_path: Path, secret_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with remote_engine(NAME, model_path, step_s=0.01) as first:
        engine = await AsyncLLM.connect(NAME, first.address, secret_file=secret_file)
        port = int(first.address.rpartition(":")[2])
        outputs = engine.generate([1, 2, 3], {"max_tokens": 1000, "temperature": 0})
        await anext(outputs)
    async with asyncio.timeout(1):
        with pytest.raises(EngineDead):
            async for _ in outputs:
                pass
    with pytest.raises(EngineDead):
        await tokens_of(engine)

    let_pass(SILENCE_S, monkeypatch)
    await asyncio.sleep(0.1)
    async with remote_engine(NAME, model_path, port=port):
        assert len(await tokens_of(engine)) == 5
        await engine.disconnect()


async def test_a_link_outlives_any_silence(
    remote: RemoteEngine, secret_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with await AsyncLLM.connect(NAME, remote.address, secret_file=secret_file) as engine:
        assert len(await tokens_of(engine)) == 5
        num_clients = (await engine.stats())["scheduler"]["num_clients"]

        let_pass(SILENCE_S, monkeypatch)
        await asyncio.sleep(0.1)

        assert (await engine.stats())["scheduler"]["num_clients"] == num_clients == 1
        assert len(await tokens_of(engine)) == 5
        assert (await engine.stats())["scheduler"]["num_clients"] == 1
