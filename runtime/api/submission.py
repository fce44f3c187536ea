"""What is sent of a new request, with the seed of its noise: a continuation has the same."""

import secrets

from raydix.errors import BadParameter
from raydix.ids import AskingId, RequestId
from raydix.runtime.api.model_limits import ModelLimits
from raydix.runtime.api.request_options import RequestOptions
from raydix.runtime.api.sampling_params import SamplingParams
from raydix.runtime.messages.arrays import Int32Array
from raydix.runtime.messages.client import SubmitRequest


def submission_of(
    asking: AskingId,
    request_id: RequestId,
    token_ids: Int32Array,
    params: SamplingParams,
    options: RequestOptions,
    *,
    limits: ModelLimits,
    has_tokenizer: bool,
) -> SubmitRequest:
    """The message that asks for one output. Raises BadRequest and BadParameter.

    token_ids: the prompt, int32. has_tokenizer: whether stop strings can be found.
    """
    for name, named_ids in (
        ("stop_token_ids", tuple(params.stop_token_ids)),
        ("logit_bias", tuple(params.biases)),
    ):
        wrong_ids = [each for each in named_ids if each >= limits.vocab_size]
        if wrong_ids:
            last = limits.vocab_size - 1
            raise BadParameter(name, f"has {wrong_ids[:8]}; expected ids from 0 to {last}.")
    if params.stop and not has_tokenizer:
        raise BadParameter(
            "stop",
            f"is {list(params.stop)}, but the checkpoint has no tokenizer that this process "
            "can read. Use stop_token_ids.",
        )
    options.check()

    sampling = params.to_device(limits.eos_token_ids, secrets.randbits(63))
    if len(sampling.masked_until_min_tokens) >= limits.vocab_size:
        raise BadParameter(
            "min_tokens",
            f"is {params.min_tokens}, and before so many tokens no stop id is sampled, which "
            "leaves no token at all. Set it to 0, or name fewer stop_token_ids.",
        )
    return SubmitRequest(
        asking=asking,
        request_id=request_id,
        token_ids=token_ids,
        sampling=sampling,
        max_tokens=params.max_tokens,
        stop_token_ids=params.ending_token_ids(limits.eos_token_ids),
        priority=int(options.priority),
        cache_salt=options.cache_salt,
        session_id=options.session_id,
        routing_key=options.routing_key,
        deadline_s=None if options.deadline_s is None else float(options.deadline_s),
        sample_of=None if options.sample_of is None else RequestId(options.sample_of),
        grammar=params.grammar(),
        retention=options.retention,
    )
