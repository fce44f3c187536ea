"""How many GPUs this host has."""

import ctypes


def count_gpus() -> int | None:
    """The GPUs that the NVIDIA driver shows this process; None if it is there and does not answer.

    Asks the driver: torch would take seconds to import, and a CUDA context's worth of memory.
    """
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int()
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
        return None
    return count.value
