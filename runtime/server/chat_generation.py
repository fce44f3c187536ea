"""What a conversation asks of the engine, and what reads its answers."""

from raydix.runtime.api.sampling_params import SamplingParams
from raydix.runtime.server.answer_reader import AnswerReader, answer_reader
from raydix.runtime.server.conversation import Conversation
from raydix.runtime.server.enforcement import with_enforced_answer
from raydix.runtime.server.generation import Generation, options_of
from raydix.runtime.server.keys import Caller
from raydix.runtime.server.served import Served, new_request_id
from raydix.runtime.server.wire.generation import GenerationFields


async def chat_generation(
    served: Served,
    conversation: Conversation,
    fields: GenerationFields,
    params: SamplingParams,
    caller: Caller,
    *,
    num_samples: int = 1,
    tells_reasoning: bool = True,
) -> tuple[Generation, AnswerReader | None]:
    """The generation of a conversation, and its reader; None: answers are content, nothing else.

    Raises BadRequest.
    """
    options = options_of(fields, caller)
    client = await served.engine.connected()
    token_ids = await conversation.token_ids(client.texts, caller.tenant)
    reader = answer_reader(client, conversation, token_ids, tells_reasoning=tells_reasoning)
    params = with_enforced_answer(params, reader, conversation)
    generation = Generation(
        client=client,
        request_id=new_request_id(),
        prompts=(token_ids,),
        prompt_field=conversation.field,
        num_samples=num_samples,
        params=params if reader is None else reader.sampling(params),
        options=options,
        tenant=caller.tenant,
    )
    generation.check()
    return generation, reader
