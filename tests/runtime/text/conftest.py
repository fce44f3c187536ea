import pytest

from raydix.runtime.text.tokenizer import Tokenizer
from tests.runtime.text.small_tokenizers import byte_level_backend, sentencepiece_backend


@pytest.fixture(scope="session")
def byte_level() -> Tokenizer:
    return Tokenizer(byte_level_backend())


@pytest.fixture(scope="session")
def sentencepiece() -> Tokenizer:
    return Tokenizer(sentencepiece_backend())
