from pathlib import Path

import pytest
import torch

from raydix.runtime.model.checkpoint import LoadedModel, load_model
from raydix.runtime.model.families.table import Family
from tests.checkpoints import make_checkpoint


@pytest.fixture(scope="session")
def small_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("small"), Family.QWEN3_MOE, seed=5)


@pytest.fixture
def small_model(small_checkpoint: Path) -> LoadedModel:
    return load_model(small_checkpoint, device=torch.device("cpu"), dtype=torch.float32)
