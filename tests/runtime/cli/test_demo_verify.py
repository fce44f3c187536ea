from pathlib import Path

import pytest
import torch
import transformers

from raydix.runtime.cli.demo_checkpoint import write_demo_checkpoint
from raydix.runtime.cli.demo_verify import compare_with_transformers

NUM_PROMPT, NUM_OUTPUT = 20, 16


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("verify")
    write_demo_checkpoint(folder)
    return folder


@pytest.fixture(scope="module")
def sequence(folder: Path) -> list[int]:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    prompt = torch.arange(30, 30 + NUM_PROMPT)[None]
    generated = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=NUM_OUTPUT,
        min_new_tokens=NUM_OUTPUT,
    )
    return generated[0].tolist()


def test_what_transformers_generated_is_accepted(folder: Path, sequence: list[int]) -> None:
    verdict = compare_with_transformers(
        folder, [(sequence, [range(NUM_PROMPT, NUM_PROMPT + NUM_OUTPUT)])]
    )
    assert verdict.num_tokens == NUM_OUTPUT
    assert verdict.differences == ()


def test_one_wrong_token_is_found(folder: Path, sequence: list[int]) -> None:
    wrong = list(sequence)
    wrong[-1] = (wrong[-1] + 1) % 256
    verdict = compare_with_transformers(
        folder, [(wrong, [range(NUM_PROMPT, NUM_PROMPT + NUM_OUTPUT)])]
    )
    assert len(verdict.differences) == 1
    assert f"position {NUM_PROMPT + NUM_OUTPUT - 1}" in verdict.differences[0]
