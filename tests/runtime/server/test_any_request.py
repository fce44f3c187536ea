"""Made-up requests, right and wrong ones, by the server's own schema: none is answered by a 5xx.

`--http-cases` bounds how many there are of each route; with 250 they are 2,000 in all.
"""

import asyncio
import collections
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode

from raydix.runtime.server.app import build_app
from tests.runtime.server.served_engine import ADMIN, ALICE, MODEL, engine_keys, serving

APPLICATION = build_app({MODEL: None}, None).openapi()  # type: ignore[dict-item]
SCHEMA = schemathesis.openapi.from_dict(APPLICATION)
ROUTES = [
    (path, method.upper()) for path, methods in APPLICATION["paths"].items() for method in methods
]


@pytest.fixture(scope="module")
def url(checkpoint: Path) -> Iterator[str]:
    """A server on a loop of its own: the requests below block."""
    loop = asyncio.new_event_loop()
    is_up, told, stop = threading.Event(), [], asyncio.Event()

    async def serve() -> None:
        async with serving(checkpoint, engine_keys()) as server:
            told.append(server.url)
            is_up.set()
            await stop.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    assert is_up.wait(60)
    yield told[0]
    loop.call_soon_threadsafe(stop.set)
    thread.join()
    loop.close()


@pytest.fixture(scope="module")
def statuses() -> Iterator[collections.Counter[int]]:
    """How often each status was answered; printed at the end, for `-s`."""
    counts: collections.Counter[int] = collections.Counter()
    yield counts
    print(f"\n{counts.total()} requests; answers by status: {dict(sorted(counts.items()))}")


@pytest.mark.parametrize(("path", "method"), ROUTES)
def test_no_request_is_answered_by_a_5xx(
    url: str,
    statuses: collections.Counter[int],
    pytestconfig: pytest.Config,
    path: str,
    method: str,
) -> None:
    operation = SCHEMA[path][method]
    cases = st.one_of(*(operation.as_strategy(generation_mode=mode) for mode in GenerationMode))
    key = ADMIN if path.startswith("/admin") or path == "/metrics" else ALICE

    @settings(
        max_examples=pytestconfig.getoption("--http-cases"),
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=cases)
    def ask(case: schemathesis.Case) -> None:
        if isinstance(case.body, dict) and isinstance(case.body.get("model"), str):
            # Any other name is a 404 before anything else is looked at.
            case.body["model"] = MODEL
        answer = case.call(base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=60)
        statuses[answer.status_code] += 1
        assert answer.status_code < 500, answer.text
        if answer.status_code >= 400:
            told = set(answer.json()["error"])
            if path.startswith("/v1/messages"):
                assert told - {"details"} == {"message", "type"}
            else:
                assert told == {"message", "type", "param", "code"}

    ask()
