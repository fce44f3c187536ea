"""What counts as a step's time."""

import pytest
import torch

from raydix.runtime.actors.cuda_timer import CudaTimer
from raydix.runtime.actors.gpu_model import HostTimer


def test_waits_for_loads_do_not_count() -> None:
    times = iter([10.0, 11.0, 15.0, 17.0, 30.0, 30.5])
    timer = HostTimer(lambda: next(times))

    timer.begin()
    for _ in range(2):
        timer.pause()
        timer.resume()
    timer.end()

    assert timer.wait_s() == pytest.approx(1.0 + 2.0 + 0.5)


@pytest.mark.gpu
def test_the_devices_stall_for_a_load_does_not_count() -> None:
    side = torch.cuda.Stream()
    arrived = torch.cuda.Event()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(200_000_000)  # about 0.1 s
        arrived.record()
    timer, whole = CudaTimer(), CudaTimer()

    whole.begin()
    timer.begin()
    torch.cuda._sleep(2_000_000)
    timer.pause()
    torch.cuda.current_stream().wait_event(arrived)
    timer.resume()
    torch.cuda._sleep(2_000_000)
    timer.end()
    whole.end()

    assert whole.wait_s() > 0.05
    assert 0.0005 < timer.wait_s() < 0.02
