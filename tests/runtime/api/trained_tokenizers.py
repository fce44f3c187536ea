"""Tokenizers of every kind that models use, trained on a few words: small, but with real merges."""

import random
from collections.abc import Sequence

from tokenizers import (
    AddedToken,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from tokenizers import Tokenizer as BackendTokenizer
from transformers import PreTrainedTokenizerFast

_CORPUS = """
the of and to in is you that it he was for on are as with his they I at be this have from or one had
by word but not what all were we when your can said there use an each which she do how their if will
up other about out many then them these so some her would make like him into Hello world
café naïve Straße 日本語 東京 привет мир 🦜 🧿🪅 Ω≈ç { } ( ) def return import 12 345 don't it's Mr.
C++ x=1; foo_bar camelCase
"""
WORDS = _CORPUS.split()
SEPARATORS = (" ", " ", " ", " ", "  ", "\n", "\n\n", ", ", ". ", "", "\t", "   ")
BYTES = tuple(f"<0x{byte:02X}>" for byte in range(256))
SPECIAL = ("<unk>", "<s>", "</s>")
KINDS = ("byte_level", "llama", "mistral", "gemma", "metaspace")


def drawn_texts(seed: int, number: int) -> list[str]:
    """Texts of words, spaces, lines, and characters that no tokenizer has seen."""
    rng = random.Random(seed)
    return [_drawn(rng) for _ in range(number)]


def _drawn(rng: random.Random) -> str:
    parts = []
    for _ in range(rng.randint(1, 24)):
        unseen = "".join(
            chr(rng.choice((rng.randint(0x20, 0x2FF), rng.randint(0x1F300, 0x1F6FF))))
            for _ in range(2)
        )
        parts.append(rng.choice((*[rng.choice(WORDS)] * 5, unseen)))
        parts.append(rng.choice(SEPARATORS))
    return "".join(parts)


def trained_backend(kind: str) -> PreTrainedTokenizerFast:
    """A tokenizer of one of `KINDS`."""
    return {
        "byte_level": _byte_level,
        "llama": _llama,
        "mistral": _mistral,
        "gemma": _gemma,
        "metaspace": _metaspace,
    }[kind]()


def _corpus() -> Sequence[str]:
    rng = random.Random(1)
    return [" ".join(rng.choices(WORDS, k=30)) for _ in range(60)]


def _byte_level() -> PreTrainedTokenizerFast:
    """A tokenizer like those of GPT-2, Llama 3, Qwen and SmolLM2."""
    backend = BackendTokenizer(models.BPE())
    backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=700, initial_alphabet=alphabet, special_tokens=list(SPECIAL), show_progress=False
    )
    backend.train_from_iterator(_corpus(), trainer)
    return _wrapped(backend)


def _llama() -> PreTrainedTokenizerFast:
    """A tokenizer like Llama 2's or Phi-3's own files: the normaliser writes the first space."""
    backend = _sentencepiece()
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
    return _wrapped(backend, bos="<s>")


def _mistral() -> PreTrainedTokenizerFast:
    """A tokenizer as transformers makes Mixtral's: only the first word is given a space."""
    backend = _sentencepiece()
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return _wrapped(backend, bos="<s>")


def _gemma() -> PreTrainedTokenizerFast:
    """No space is written before the first word, and none stripped."""
    backend = _sentencepiece()
    backend.normalizer = normalizers.Replace(" ", "▁")
    backend.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return _wrapped(backend, bos="<s>")


def _metaspace() -> PreTrainedTokenizerFast:
    """A tokenizer like T5's: it knows words alone, and what is unknown is lost."""
    backend = _sentencepiece()
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=True)
    backend.decoder = decoders.Metaspace(prepend_scheme="always", split=True)
    return _wrapped(backend)


def _sentencepiece() -> BackendTokenizer:
    """Merges of words with U+2581 before them, and a token for each byte."""
    trained = BackendTokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=True)
    trainer = trainers.BpeTrainer(
        vocab_size=500, special_tokens=[*SPECIAL, *BYTES], show_progress=False
    )
    trained.train_from_iterator(_corpus(), trainer)

    merges, made = [], trained.get_vocab()
    for token in sorted(made, key=made.__getitem__):
        halves = [(token[:cut], token[cut:]) for cut in range(1, len(token))]
        if token not in (*SPECIAL, *BYTES):
            merges += [pair for pair in halves if pair[0] in made and pair[1] in made][:1]
    # Two and four spaces, as all of these have.
    for pair in (("▁", "▁"), ("▁▁", "▁▁")):
        made.setdefault("".join(pair), len(made))
        merges.append(pair)
    return BackendTokenizer(
        models.BPE(vocab=made, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )


def _wrapped(backend: BackendTokenizer, bos: str | None = None) -> PreTrainedTokenizerFast:
    backend.add_special_tokens(
        [AddedToken(each, special=True, normalized=False) for each in SPECIAL]
    )
    if bos is not None:
        backend.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", special_tokens=[(bos, backend.token_to_id(bos))]
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )
