"""What transformers' own `generate` says of prompts, and the comparison with it."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from raydix.runtime.api.engine_client import EngineClient
from raydix.runtime.api.outputs import RequestOutput
from raydix.runtime.api.request_options import RequestOptions
from raydix.runtime.model.families.table import Family
from tests.checkpoints import MIN_TOP2_GAP, load_in_transformers

NUM_TOKENS = 64
Prompt = tuple[int, ...]


@dataclass(frozen=True)
class Expected:
    """The greedy continuation of a prompt. `gaps`: each largest logit less the second."""

    prompt: Prompt
    token_ids: list[int]
    gaps: list[float]
    logits: torch.Tensor
    """The logits, [tokens, V]."""
    min_gap: float = MIN_TOP2_GAP

    def is_decided(self, position: int) -> bool:
        """Is the reference's choice beyond rounding?"""
        return self.gaps[position] >= self.min_gap


class Reference:
    """One checkpoint in transformers, with every answer it gave."""

    def __init__(
        self,
        folder: Path,
        make_cache: Callable[[Any], Any] | None = None,
        min_gap: float = MIN_TOP2_GAP,
        model: Any = None,
    ) -> None:
        """`make_cache`: makes another cache than transformers' own, of a model's config.

        `model`: what computes, if it is not transformers' own of that checkpoint.
        """
        self.folder = folder
        self._make_cache = make_cache
        self._min_gap = min_gap
        self._model = load_in_transformers(folder) if model is None else model
        self._known: dict[Prompt, Expected] = {}
        self._known_with: dict[str, Expected] = {}
        """What is known by the prompt, how many tokens, and the options."""
        self._logits: dict[Prompt, torch.Tensor] = {}

    def expect(self, prompts: Iterable[Prompt]) -> list[Expected]:
        """The first `NUM_TOKENS` greedy tokens of each prompt, in order."""
        prompts = list(prompts)
        by_length: dict[int, list[Prompt]] = defaultdict(list)
        for prompt in dict.fromkeys(prompts):
            if prompt not in self._known:
                by_length[len(prompt)].append(prompt)
        for same_length in by_length.values():
            self._ask(same_length)
        return [self._known[prompt] for prompt in prompts]

    @torch.inference_mode()
    def logits_of(self, prompt: Prompt) -> torch.Tensor:
        """[tokens, V]: those behind each token of a prompt."""
        if prompt not in self._logits:
            self._logits[prompt] = self._model(torch.tensor([prompt])).logits[0]
        return self._logits[prompt]

    def expect_with(self, prompt: Prompt, num_tokens: int, **options: Any) -> Expected:
        """A greedy continuation by other options of transformers' `generate`.

        `gaps` and `logits` are those of the scores that it chose by.
        """
        asked = repr((prompt, num_tokens, options))
        if asked not in self._known_with:
            self._known_with[asked] = self._ask_with(prompt, num_tokens, options)
        return self._known_with[asked]

    @torch.inference_mode()
    def _ask_with(self, prompt: Prompt, num_tokens: int, options: dict[str, Any]) -> Expected:
        batch = torch.tensor([prompt])
        output = self._model.generate(
            batch,
            attention_mask=torch.ones_like(batch),
            max_new_tokens=num_tokens,
            do_sample=False,
            output_scores=True,
            return_dict_in_generate=True,
            **options,
        )
        scores_TV = torch.cat(output.scores)
        top2_T2 = scores_TV.topk(2, dim=-1).values
        return Expected(
            prompt=prompt,
            token_ids=output.sequences[0, len(prompt) :].tolist(),
            gaps=(top2_T2[:, 0] - top2_T2[:, 1]).tolist(),
            logits=scores_TV,
        )

    @torch.inference_mode()
    def _ask(self, prompts: list[Prompt]) -> None:
        batch = torch.tensor(prompts)
        make_cache = self._make_cache
        cache = {} if make_cache is None else {"past_key_values": make_cache(self._model.config)}
        output = self._model.generate(
            batch,
            attention_mask=torch.ones_like(batch),
            max_new_tokens=NUM_TOKENS,
            do_sample=False,
            output_logits=True,
            return_dict_in_generate=True,
            **cache,
        )
        logits_BTV = torch.stack(output.logits, dim=1)
        top2_BT2 = logits_BTV.topk(2, dim=-1).values
        for row, prompt in enumerate(prompts):
            self._known[prompt] = Expected(
                prompt=prompt,
                token_ids=output.sequences[row, len(prompt) :].tolist(),
                gaps=(top2_BT2[row, :, 0] - top2_BT2[row, :, 1]).tolist(),
                logits=logits_BTV[row],
                min_gap=self._min_gap,
            )


class References(Protocol):
    """A small checkpoint of each family, in transformers."""

    def __call__(self, family: Family, window: int | None = None) -> Reference:
        """`window`: other than the family's checkpoints have, in tokens."""


GREEDY: Mapping[str, Any] = {"temperature": 0.0}


async def generate(
    client: EngineClient,
    prompt: Sequence[int],
    num_tokens: int,
    sampling: Mapping[str, Any] = GREEDY,
    options: RequestOptions | None = None,
) -> RequestOutput:
    """The finished output."""
    params = {"max_tokens": num_tokens, "output_kind": "final", **sampling}
    [output] = [output async for output in client.generate(list(prompt), params, options=options)]
    return output


async def assert_exact(client: EngineClient, expected: Expected, token_ids: Sequence[int]) -> int:
    """Compare with the reference; returns how many positions were decided, the others may differ.

    Past a position where rounding chose another token, the comparison goes on with the reference's
    tokens as prompt.
    """
    num_tokens = len(token_ids)
    offset = 0
    """The place of `token_ids` in the expected output."""
    for position in range(num_tokens):
        wanted, found = expected.token_ids[position], token_ids[position - offset]
        if wanted == found:
            continue
        assert not expected.is_decided(position), (
            f"token {position} is {found}, not {wanted}; the reference's gap is "
            f"{expected.gaps[position]}"
        )
        offset = position + 1
        if offset < num_tokens:
            forced = (*expected.prompt, *expected.token_ids[:offset])
            token_ids = (await generate(client, forced, num_tokens - offset)).outputs[0].token_ids
    return sum(expected.is_decided(position) for position in range(num_tokens))
