"""The models that the demo can chat with: their checkpoints, what is said, and their engines."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import assert_never

from raydix.errors import ConfigError
from raydix.runtime.cli.demo_checkpoint import write_demo_checkpoint
from raydix.runtime.cli.demo_smollm2 import smollm2_checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoModel:
    """A model, the conversations with it, and an engine whose L1 is too small for all of them."""

    checkpoint: Callable[[Path], Path]
    """Finds the checkpoint and makes it if it is absent; takes the folder of the demo."""
    is_trained: bool
    """Its answers end by themselves and are worth reading."""
    answer_tokens: int
    """The most that an answer has; of a model that is not trained, all have them."""
    system: str
    topics: tuple[str, ...]
    """There is a conversation about each."""
    questions: tuple[str, ...]
    """One for each turn, with `{topic}` where that belongs."""
    max_model_len: int
    l1_pages: int
    l2_bytes: str


class ModelName(StrEnum):
    """The values of `--model`."""

    RANDOM = "random"
    SMOLLM2 = "smollm2"

    @property
    def model(self) -> DemoModel:
        """The model of this name."""
        match self:
            case ModelName.RANDOM:
                return _RANDOM
            case ModelName.SMOLLM2:
                return _SMOLLM2
            case _:
                assert_never(self)


def _random_checkpoint(folder: Path) -> Path:
    checkpoint = folder / "checkpoint"
    if not (checkpoint / "config.json").is_file():
        try:
            write_demo_checkpoint(checkpoint)
        except OSError as error:
            raise ConfigError(
                f"--folder {folder} cannot be written: {error.strerror}. Name a folder of yours."
            ) from error
    return checkpoint


_RANDOM = DemoModel(
    checkpoint=_random_checkpoint,
    is_trained=False,
    answer_tokens=24,
    system="You are the guide of a small natural history museum. Answer in one short paragraph, "
    "name one exhibit that the visitor can walk to, and stay friendly even if the question is "
    "about dinosaurs for the tenth time today.",
    topics=(
        "ammonites", "basalt", "cave bears", "diatoms", "eclipses", "feathers",
        "glaciers", "horseshoe crabs", "iridium", "jellyfish", "kelp forests", "lichens",
    ),
    questions=(
        "I have ten minutes. What should I know about {topic}?",
        "Which of the things that you said about {topic} would surprise a child most?",
        "And how do we know that about {topic}? I would like to see the evidence.",
        "My train leaves soon: say again in a few words why {topic} matter.",
        "Thank you. Where can I read more about {topic} at home?",
    ),
    max_model_len=1280,
    l1_pages=96,
    l2_bytes="64MiB",
)  # fmt: skip

_SMOLLM2 = DemoModel(
    checkpoint=lambda _: smollm2_checkpoint(),
    is_trained=True,
    answer_tokens=64,
    system="You are a helpful AI assistant named SmolLM, trained by Hugging Face. You talk to the "
    "visitors of a small science museum, who are curious and in a hurry. Answer each question in "
    "one short and friendly sentence.",
    topics=("gravity", "photosynthesis", "electricity", "a fossil", "a magnet", "evaporation"),
    questions=(
        "What is {topic}? Answer in one sentence.",
        "Explain {topic} to a child in one sentence.",
        "Name one surprising fact about {topic}.",
        "How do scientists study {topic}?",
        "Why is {topic} important to us?",
    ),
    max_model_len=512,
    l1_pages=36,
    l2_bytes="256MiB",
)
