import os

import pytest
import torch


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> torch.device:
    """Where Triton kernels run: on a GPU, or on the CPU under Triton's interpreter."""
    if request.param == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip(
            "Triton compiles for GPUs; set TRITON_INTERPRET=1 to run its kernels on the CPU"
        )
    return torch.device(request.param)


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def dtype(request: pytest.FixtureRequest, device: torch.device) -> torch.dtype:
    """The dtype of a model. Only GPUs round to bfloat16: Triton's interpreter cuts."""
    if device.type == "cpu" and request.param == torch.bfloat16:
        pytest.skip("Triton's interpreter does not round to bfloat16")
    chosen: torch.dtype = request.param
    return chosen
