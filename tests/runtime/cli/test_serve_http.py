import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from raydix.runtime.cli import serve as serve_verb
from raydix.runtime.cli.http_front import HttpOptions, read_http_options
from raydix.runtime.config.loading import load_config

KEY = "alice-key-0123456789"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--http", "0.0.0.0:0"], "Add --keys FILE"),
        (["--http", "8000"], "expected HOST:PORT"),
        (["--http", "localhost:99999"], "a port of 0 to 65535"),
        (["--listen", "localhost"], "--listen: the address is"),
        (["--http", "localhost:1", "--listen", "127.0.0.1:1"], "--listen takes port 1; expected"),
        (["--http", ":1", "--set", "ray.metrics_port=1"], "--http takes port 1; expected"),
        (["--http", "127.0.0.1:0", "--keys", "none.yaml"], "cannot be read"),
        (["--keys", "none.yaml"], "Add --http HOST:PORT"),
        (["--cors-origin", "*"], "Add --http HOST:PORT"),
        (["--http", "127.0.0.1:0", "--cors-origin", "https://a.b/"], "--cors-origin: The origin"),
        (["--model-name", "m"], "Add --http HOST:PORT"),
        (["--http-replicas", "2"], "Add --http HOST:PORT"),
        (["--secret-file", "none"], "Add --listen HOST:PORT"),
        (["--http", "0.0.0.0:0", "--http-replicas", "2"], "Add --keys FILE"),
        (["--http", "127.0.0.1:0", "--http-replicas", "2", "--address", "1.2.3.4:5"], "serve run"),
    ],
)
def test_wrong_options_are_told_before_an_engine_starts(
    run: Any,
    cluster: Any,
    checkpoint: str,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    problem: str,
) -> None:
    assert run("serve", checkpoint, *arguments) == 1
    assert problem in capsys.readouterr().err
    assert cluster.configs == []


async def test_http_is_served_beside_the_engine_until_the_end(
    cluster: Any,
    checkpoint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    stop = asyncio.Event()

    async def until_told(ended: Any) -> None:
        ended.close()
        await stop.wait()

    monkeypatch.setattr(serve_verb, "until_stopped", until_told)
    key_file = tmp_path / "keys.yaml"
    key_file.write_text(f"tenants: {{alice: {KEY}}}\n")
    key_file.chmod(0o600)
    config = load_config(checkpoint)
    front = read_http_options(HttpOptions("127.0.0.1:0", key_file=key_file))

    serving = asyncio.create_task(
        serve_verb.serve_until_stopped(
            config, serve_verb.EngineOptions("mine", None, 10.0), front, "tiny"
        )
    )
    async with asyncio.timeout(20):
        while "HTTP is ready" not in caplog.text:
            await asyncio.sleep(0.01)

    url = caplog.text.partition("ready at ")[2].split("/v1")[0]
    async with httpx.AsyncClient(base_url=url) as http:
        refused = await http.get("/v1/models")
        http.headers["Authorization"] = f"Bearer {KEY}"
        [model] = (await http.get("/v1/models")).json()["data"]
        answer = await http.post("/v1/completions", json={"prompt": [104, 105]})
        text = await http.post("/tokenize", json={"prompt": "he"})
        back = await http.post("/detokenize", json={"tokens": text.json()["tokens"]})
    stop.set()
    await serving

    assert refused.status_code == 401
    assert model["id"] == "tiny"
    assert answer.json()["usage"]["total_tokens"] == 4
    assert back.json() == {"prompt": "he"}
    assert cluster.handle.is_shut_down
