from dataclasses import replace

from raydix.kernels.moe.routing import SoftmaxRouting
from raydix.runtime.model.spec.rope_spec import DefaultRope
from raydix.runtime.model.spec.spec import (
    AttentionSpec,
    DenseMlpSpec,
    LatentAttentionSpec,
    LayerSpec,
    ModelSpec,
    MoeMlpSpec,
    NormSpec,
)

NORM = NormSpec(eps=1e-6)
ATTENTION = AttentionSpec(
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    scale=8**-0.5,
    rope=DefaultRope(theta=5000.0),
    qkv_bias=False,
    output_bias=False,
    qk_norm=None,
)
LATENT_ATTENTION = LatentAttentionSpec(
    num_heads=4,
    q_lora_rank=None,
    kv_lora_rank=16,
    qk_nope_head_dim=6,
    qk_rope_head_dim=4,
    v_head_dim=8,
    rope=DefaultRope(theta=5000.0),
    has_interleaved_pairs=True,
    scale=10**-0.5,
    bias=False,
    norm=NORM,
)
DENSE = LayerSpec(
    attention=ATTENTION, mlp=DenseMlpSpec(intermediate_size=40, bias=False), norm=NORM
)
SPARSE = replace(
    DENSE,
    mlp=MoeMlpSpec(
        num_experts=6,
        experts_per_token=2,
        intermediate_size=40,
        routing=SoftmaxRouting(renormalise=True),
        shared=None,
    ),
)
MODEL = ModelSpec(
    vocab_size=100,
    hidden_size=32,
    layers=(DENSE, SPARSE),
    final_norm=NORM,
    tied_embeddings=False,
)


def test_digest_is_that_of_equal_models() -> None:
    assert replace(MODEL, layers=tuple(MODEL.layers)).digest() == MODEL.digest()
    assert len(MODEL.digest()) == 32


def test_digest_follows_every_layer() -> None:
    other_theta = replace(DENSE, attention=replace(ATTENTION, rope=DefaultRope(theta=5001.0)))
    normed_heads = replace(DENSE, attention=replace(ATTENTION, qk_norm=NORM))
    layers = [
        (DENSE, SPARSE),
        (SPARSE, DENSE),
        (DENSE, DENSE),
        (DENSE,),
        (other_theta, SPARSE),
        (normed_heads, SPARSE),
    ]

    assert len({replace(MODEL, layers=each).digest() for each in layers}) == len(layers)


def test_digest_tells_types_of_equal_fields_apart() -> None:
    class NormSpecOfOtherKind(NormSpec):
        pass

    assert replace(MODEL, final_norm=NormSpecOfOtherKind(eps=1e-6)).digest() != MODEL.digest()
