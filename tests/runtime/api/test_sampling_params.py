import dataclasses
import pickle

import pytest

from raydix.errors import BadRequest
from raydix.runtime.api.samples import params_of_sample
from raydix.runtime.api.sampling_params import OutputKind, SamplingParams


def test_defaults_are_those_of_vllm_without_its_limit_of_16_tokens():
    params = SamplingParams()

    assert (params.n, params.temperature, params.top_k, params.top_p, params.min_p) == (
        1,
        1.0,
        0,
        1.0,
        0.0,
    )
    assert (params.max_tokens, params.min_tokens, params.seed, params.logprobs) == (
        None,
        0,
        None,
        None,
    )


def test_max_new_tokens_is_another_name_for_max_tokens():
    assert SamplingParams(max_new_tokens=7) == SamplingParams(max_tokens=7)


def test_a_dict_is_accepted():
    assert SamplingParams.of({"temperature": 0, "max_new_tokens": 3}) == SamplingParams(
        temperature=0, max_tokens=3
    )


def test_none_means_the_defaults_and_params_stay_themselves():
    params = SamplingParams(top_k=5)
    assert SamplingParams.of(None) == SamplingParams()
    assert SamplingParams.of(params) is params


def test_one_stop_string_and_a_list_of_one_are_equal():
    assert SamplingParams(stop="\n").stop == SamplingParams(stop=["\n"]).stop == ("\n",)


def test_params_can_be_pickled_and_replaced():
    params = SamplingParams(max_new_tokens=4, stop=["a"], output_kind="delta")
    assert pickle.loads(pickle.dumps(params)) == params
    assert dataclasses.replace(params, output_kind=OutputKind.FINAL).max_tokens == 4


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"temprature": 1}, "Did you mean 'temperature'"),
        ({"max_token": 1}, "Did you mean 'max_tokens'"),
        ({"zzzz": 1}, "Use one of"),
        ({"bad_words": []}, "not supported"),
        ({"logit_bias": [1]}, "logit_bias is \\[1\\]; expected a dict"),
        ({"logit_bias": dict.fromkeys(range(1025), 1)}, "up to 1024 tokens"),
        ({"logit_bias": {-1: 1}}, "logit_bias has the key -1"),
        ({"logit_bias": {"+1": 1}}, "logit_bias has the key '\\+1'"),
        ({"logit_bias": {"²": 1}}, "logit_bias has the key"),
        ({"logit_bias": {"1" * 5000: 1}}, "logit_bias has the key"),
        ({"logit_bias": {1.5: 1}}, "logit_bias has the key 1.5"),
        ({"logit_bias": {True: 1}}, "logit_bias has the key True"),
        ({"logit_bias": {3: 100.5}}, "logit_bias of token 3 is 100.5; expected a number from -100"),
        ({"logit_bias": {3: float("nan")}}, "logit_bias of token 3 is nan"),
        ({"logit_bias": {3: float("-inf")}}, "logit_bias of token 3 is -inf"),
        ({"logit_bias": {3: True}}, "logit_bias of token 3 is True"),
        ({"logit_bias": {3: "1"}}, "logit_bias of token 3 is '1'"),
        ({"logit_bias": {3: 1, "3": 1}}, "token 3 twice"),
        ({"n": True}, "whole number"),
        ({"temperature": -0.1}, "0 \\(greedy\\) or more"),
        ({"temperature": float("nan")}, "finite"),
        ({"temperature": "hot"}, "finite"),
        ({"top_k": -2}, "top_k is -2"),
        ({"top_k": 1.5}, "whole number"),
        ({"top_p": 0}, "top_p is 0"),
        ({"top_p": 1.1}, "top_p is 1.1"),
        ({"min_p": 2}, "min_p is 2"),
        ({"temperature": 1e300}, "up to 1e\\+06"),
        ({"repetition_penalty": 0}, "repetition_penalty is 0"),
        ({"repetition_penalty": 1e-40}, "0.01, 100"),
        ({"repetition_penalty": 1e39}, "0.01, 100"),
        ({"presence_penalty": 3}, "presence_penalty is 3"),
        ({"frequency_penalty": -3}, "frequency_penalty is -3"),
        ({"seed": -(2**63) - 1}, "Leave it out"),
        ({"seed": 2**63}, "2\\*\\*63 - 1"),
        ({"stop": [""]}, "non-empty"),
        ({"stop": [3]}, "non-empty"),
        ({"stop": ["a", "\ud800"]}, "half of a surrogate pair"),
        ({"stop": 3}, "a str, a list of them"),
        ({"stop": {"a": 1}}, "a str, a list of them"),
        ({"stop": b"a"}, "a str, a list of them"),
        ({"stop_token_ids": 3}, "a list of token ids"),
        ({"top_k": 2**31}, "top_k is"),
        ({"min_tokens": 2**31}, "min_tokens is"),
        ({"max_tokens": 2**63}, "max_tokens is"),
        ({"stop_token_ids": [-1]}, "token ids"),
        ({"stop_token_ids": range(10**12)}, "more than 1024 entries; expected at most"),
        ({"stop": ["a"] * 65}, "more than 64 entries; expected at most"),
        ({"stop_token_ids": ["a"]}, "token ids"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"min_tokens": -1}, "min_tokens is -1"),
        ({"logprobs": 21}, "0 to 20"),
        ({"prompt_logprobs": 21}, "prompt_logprobs is 21; expected 0 to 20"),
        ({"prompt_logprobs": -1}, "prompt_logprobs is -1"),
        ({"prompt_logprobs": True}, "prompt_logprobs is True; expected a whole number"),
        ({"output_kind": "stream"}, "cumulative, delta, final"),
        ({"ignore_eos": 1}, "True or False"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens <= max_tokens"),
        ({"max_tokens": 5, "max_new_tokens": 4}, "name one limit"),
        ({"stop": "a", "detokenize": False}, "detokenize=True"),
    ],
)
def test_unknown_and_contradictory_values_are_refused_with_advice(values, message):
    with pytest.raises(BadRequest, match=message):
        SamplingParams(**values)


def test_a_wrong_type_of_params_is_refused():
    with pytest.raises(BadRequest, match="a list"):
        SamplingParams.of([1])  # type: ignore[arg-type]


def test_the_users_seed_wins_over_the_drawn_one():
    assert SamplingParams(seed=3).to_device((), 99).seed == 3
    assert SamplingParams().to_device((), 99).seed == 99


def test_negative_seeds_are_seeds_but_minus_one_which_is_random():
    assert SamplingParams(seed=-1).to_device((), 99).seed == 99
    seeds = [SamplingParams(seed=each).to_device((), 99).seed for each in (-2, -3, -(2**63))]
    assert seeds == [2**63 - 2, 2**63 - 3, 0]
    samples = [params_of_sample(SamplingParams(seed=-3, n=3), index).seed for index in range(3)]
    assert samples == [2**63 - 3, 2**63 - 2, 2**63 - 1]


def test_top_k_minus_one_keeps_all_on_the_device():
    assert SamplingParams(top_k=-1).to_device((), 0).top_k == 0


def test_min_tokens_masks_what_could_end_the_output():
    params = SamplingParams(min_tokens=2, stop_token_ids=[9, 4])
    assert params.to_device((7,), 0).masked_until_min_tokens == (4, 7, 9)
    assert SamplingParams(stop_token_ids=[9]).to_device((7,), 0).masked_until_min_tokens == ()


def test_min_tokens_masks_eos_that_is_ignored_too():
    params = SamplingParams(min_tokens=2, ignore_eos=True, stop_token_ids=[9])
    assert params.to_device((7,), 0).masked_until_min_tokens == (7, 9)


def test_biases_go_to_the_device_by_id_but_for_those_that_change_nothing():
    params = SamplingParams(logit_bias={"12": -100, 7: 0.5, 9: 0})
    device = params.to_device((), 0)
    assert (device.biased_token_ids, device.biases) == ((7, 12), (0.5, -100.0))
    assert params.logit_bias == {12: -100.0, 7: 0.5, 9: 0.0}
    assert hash(params) == hash(dataclasses.replace(params))
    assert pickle.loads(pickle.dumps(params)) == params
    assert SamplingParams(logit_bias={}).to_device((), 0).biases == ()


def test_ignore_eos_spares_stop_token_ids():
    params = SamplingParams(ignore_eos=True, stop_token_ids=[9, 7])
    assert params.ending_token_ids((7, 8)) == (7, 9)
