import os

import pytest
import torch


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> torch.device:
    """Where Triton kernels run; on the CPU under Triton's interpreter, whose bfloat16 products are wrong."""
    if request.param == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("Triton compiles for GPUs; set TRITON_INTERPRET=1 to run its kernels on the CPU")
    return torch.device(request.param)
