# mypy: disable-error-code="no-untyped-def"
"""How the samplers' kernels read logits, weigh them and turn them to integer keys and back."""

import triton
import triton.language as tl

LARGEST = tl.constexpr(3.4028234663852886e38)
"""The largest float32."""


@triton.jit
def load_logits(row_ptr, token_ids, vocab_size):
    """Logits of tokens; -inf past the vocabulary, +inf for NaN."""
    logits = tl.load(row_ptr + token_ids, mask=token_ids < vocab_size, other=float("-inf"))
    logits = logits.to(tl.float32)
    return tl.where(logits == logits, logits, float("inf"))


@triton.jit
def load_largest(row_ptr, likeliest):
    """The row's largest logit."""
    return tl.load(row_ptr + likeliest).to(tl.float32)


@triton.jit
def weights_of(logits, largest, temperature):
    """Weights proportional to the tokens' probabilities; that of the most likely token is 1."""
    return tl.exp((logits - largest) * (1.0 / temperature))


@triton.jit
def least_kept(largest, temperature, min_p):
    """The least logit that min-p keeps; -inf without min-p."""
    return largest + temperature * tl.log(min_p)


@triton.jit
def keys_of(logits, KEY_BITS: tl.constexpr):
    """Integers in the order of the logits: their first bits, inverted where they are negative."""
    bits = tl.where(logits == 0.0, 0.0, logits).to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)) >> (32 - KEY_BITS)


@triton.jit
def logits_of(keys, KEY_BITS: tl.constexpr):
    """The least logits of these keys."""
    bits = keys << (32 - KEY_BITS)
    # A negative number with all further bits set is the least that has its first bits.
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
