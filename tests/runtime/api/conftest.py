import pytest

from raydix.runtime.api.tokenizer import Tokenizer
from tests.runtime.api.small_tokenizers import byte_level_backend, sentencepiece_backend


@pytest.fixture(scope="session")
def byte_level() -> Tokenizer:
    return Tokenizer(byte_level_backend())


@pytest.fixture(scope="session")
def sentencepiece() -> Tokenizer:
    return Tokenizer(sentencepiece_backend())
