"""Small tokenizers of the two kinds that the supported models use, made without a download."""

from tokenizers import Tokenizer as BackendTokenizer
from tokenizers import decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from raydix.runtime.api.tokenizer import Tokenizer

CHAT_TEMPLATE = (
    "{% for m in messages %}"
    "{% if m['role'] == 'tool' %}{{ raise_exception('no tools') }}{% endif %}"
    "<|{{ m['role'] }}|>{{ m['content'] }}<|end|>"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def byte_level_backend() -> PreTrainedTokenizerFast:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {character: i for i, character in enumerate(alphabet)} | {
        "he": 256,
        "ll": 257,
        "Ġw": 258,
    }

    backend = BackendTokenizer(
        models.BPE(vocab=vocabulary, merges=[("h", "e"), ("l", "l"), ("Ġ", "w")])
    )
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<|end|>", "<|user|>", "<|assistant|>"])
    backend.add_tokens(["added word", "中"])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<|end|>", chat_template=CHAT_TEMPLATE
    )


def sentencepiece_backend() -> PreTrainedTokenizerFast:
    pieces = [
        "<unk>",
        "</s>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        "▁",
        *"abcdefgh",
        "▁a",
        "bc",
        "▁▁",
        "é",
    ]
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    merges = [("▁", "a"), ("b", "c"), ("▁", "▁")]

    backend = BackendTokenizer(
        models.BPE(vocab=vocabulary, merges=merges, byte_fallback=True, unk_token="<unk>")
    )
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    backend.add_special_tokens(["</s>"])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="</s>", clean_up_tokenization_spaces=True
    )


def word_piece_backend() -> PreTrainedTokenizerFast:
    """Neither bytes nor sentencepiece: the decoder looks at what a piece begins with."""
    pieces = ["[UNK]", "[END]", "a", "##b", "c", "##cd", "e"]
    backend = BackendTokenizer(
        models.WordPiece({piece: i for i, piece in enumerate(pieces)}, unk_token="[UNK]")
    )
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.decoder = decoders.WordPiece(prefix="##", cleanup=False)
    backend.add_special_tokens(["[END]"])
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="[END]")


def byte_token_tokenizer() -> Tokenizer:
    """257 tokens: each byte, in the order of the byte-level alphabet, and 256, an EOS."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = BackendTokenizer(
        models.BPE(vocab={each: i for i, each in enumerate(alphabet)}, merges=[])
    )
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<eos>"])
    return Tokenizer(PreTrainedTokenizerFast(tokenizer_object=backend))
