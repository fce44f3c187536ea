"""What tests of a client share: a small model, and waiting for what the client sends and yields."""

import asyncio

from raydix.runtime.api.engine_client import EngineClient
from raydix.runtime.api.model_limits import ModelLimits
from raydix.runtime.messages.client import SubmitRequest
from tests.runtime.api.small_tokenizers import byte_token_tokenizer

TOKENIZER = byte_token_tokenizer()
LIMITS = ModelLimits(
    fingerprint="weights",
    max_model_len=16,
    vocab_size=257,
    max_waiting_requests=1024,
    eos_token_ids=(256,),
)


def client_over(link, limits=LIMITS, tokenizer=None, **arguments):
    """A client of one engine, over this link."""
    client = EngineClient(limits, tokenizer, **arguments)
    client.use("raydix", link)
    return client


async def turns(count=5):
    """Let other tasks run until they all wait."""
    for _ in range(count):
        await asyncio.sleep(0)


async def submitted(link, count=1):
    """Wait until the client has sent `count` requests (text is tokenised on a thread)."""
    async with asyncio.timeout(5):
        while len(link.sent_of(SubmitRequest)) < count:
            await asyncio.sleep(0)
    return link.sent_of(SubmitRequest)[-1]


async def collect(outputs):
    return [each async for each in outputs]
