from pathlib import Path

import pytest
import torch

from raydix.runtime.model.checkpoint.checkpoint import LoadedModel, load_model
from raydix.runtime.model.decoder.decoder import Decoder
from raydix.runtime.model.families.table import Family
from raydix.runtime.model.steps.runner import ModelRunner
from tests.checkpoints import make_checkpoint
from tests.runtime.model.steps.captured_runner import make_random_decoder, make_runner


@pytest.fixture(scope="session")
def small_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("small"), Family.QWEN3_MOE, seed=5)


@pytest.fixture
def small_model(small_checkpoint: Path) -> LoadedModel:
    return load_model(small_checkpoint, device=torch.device("cpu"), dtype=torch.float32)


@pytest.fixture(scope="session")
def state_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("states"), Family.QWEN3_5_TEXT, seed=5)


@pytest.fixture
def state_model(state_checkpoint: Path) -> LoadedModel:
    """A model of which most layers keep states."""
    return load_model(state_checkpoint, device=torch.device("cpu"), dtype=torch.float32)


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def decoder(request: pytest.FixtureRequest) -> Decoder:
    """A decoder on a GPU."""
    return make_random_decoder(request.param)


@pytest.fixture(params=[16, 64])
def runners(decoder: Decoder, request: pytest.FixtureRequest) -> tuple[ModelRunner, ModelRunner]:
    """Runners on a GPU, without and with captured steps."""
    eager, captured = (make_runner(decoder, request.param) for _ in range(2))
    captured.capture_graphs()
    return eager, captured
