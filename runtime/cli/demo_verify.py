"""The engine's greedy tokens, compared with those of transformers."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers

NEAR_TIE = 1e-3
"""Where the reference's two best logits are closer than this, rounding may choose either."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the comparison found."""

    num_tokens: int
    num_near_ties: int
    """Tokens that differ where the reference itself is undecided."""
    differences: tuple[str, ...]


def compare_with_transformers(
    checkpoint: Path, answers: Sequence[tuple[Sequence[int], Sequence[range]]]
) -> Verdict:
    """Check that each generated token is the reference's greedy choice after everything before it.

    answers: the token ids of each sequence, and the spans in it that were generated. One pass over
    a whole sequence, in float32, compares all its tokens: until the first near tie it proves
    equality with `generate`, and after it each token is still checked by itself.
    """
    transformers.utils.logging.disable_progress_bar()
    model = transformers.AutoModelForCausalLM.from_pretrained(
        checkpoint, dtype=torch.float32
    ).eval()

    num_tokens, num_near_ties, differences = 0, 0, []
    for index, (token_ids, spans) in enumerate(answers):
        with torch.inference_mode():
            logits_TV = model(torch.tensor([token_ids])).logits[0]
        best_T2 = logits_TV.topk(2, dim=-1)

        for position in (position for span in spans for position in span):
            num_tokens += 1
            # The logits of one position choose the token of the next.
            expected = int(best_T2.indices[position - 1, 0])
            if token_ids[position] == expected:
                continue
            gap = float(best_T2.values[position - 1, 0] - best_T2.values[position - 1, 1])
            if gap < NEAR_TIE:
                num_near_ties += 1
            else:
                differences.append(
                    f"Sequence {index}, position {position}: got token {token_ids[position]}, "
                    f"transformers chooses {expected} by {gap:.4f}."
                )

    return Verdict(
        num_tokens=num_tokens, num_near_ties=num_near_ties, differences=tuple(differences)
    )
