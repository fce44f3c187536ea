"""Models that are often asked for and need what the decoder does not compute."""

from collections.abc import Mapping

_INDEXER = "choose the tokens that they attend to by an indexer"
_DELTA_BY_CHANNEL = "keep states that decay by channel (KDA)"
_LLAMA4 = "attend within chunks and scale what their experts read"
_MINIMAX_M3 = "choose the blocks that they attend to by an indexer"
NOT_COMPUTED: Mapping[str, str] = {
    "deepseek_v32": _INDEXER,
    "glm_moe_dsa": _INDEXER,
    "deepseek_v4": "compress keys and values of tokens, and keep several residual streams",
    "kimi_linear": _DELTA_BY_CHANNEL,
    "kimi_k3": _DELTA_BY_CHANNEL,
    "nemotron_h": "have layers of Mamba-2, and layers without attention",
    "llama4": _LLAMA4,
    "llama4_text": _LLAMA4,
    "minimax": "have layers of lightning attention, which keep states",
    "minimax_m3": _MINIMAX_M3,
    "minimax_m3_vl": _MINIMAX_M3,
    "minimax_m3_vl_text": _MINIMAX_M3,
}
"""What models of a `model_type` do that Raydix does not compute."""
