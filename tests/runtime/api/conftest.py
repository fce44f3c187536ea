import pytest

from raydix.runtime.api.tokenizer import Tokenizer
from tests.hollow_checkpoint import make_hollow
from tests.runtime.api.fake_engine import FakeCluster, FakeLink
from tests.runtime.api.small_client import LIMITS, TOKENIZER, client_over
from tests.runtime.api.small_tokenizers import byte_level_backend, sentencepiece_backend


@pytest.fixture(scope="session")
def byte_level() -> Tokenizer:
    return Tokenizer(byte_level_backend())


@pytest.fixture(scope="session")
def sentencepiece() -> Tokenizer:
    return Tokenizer(sentencepiece_backend())


@pytest.fixture
async def link():
    return FakeLink()


@pytest.fixture
async def client(link):
    client = client_over(link, LIMITS, TOKENIZER)
    yield client
    await client.close()


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoint")
    byte_level_backend().save_pretrained(folder)
    return str(make_hollow(folder))


@pytest.fixture
def cluster(checkpoint, monkeypatch):
    cluster = FakeCluster(checkpoint)
    cluster.install(monkeypatch)
    return cluster
