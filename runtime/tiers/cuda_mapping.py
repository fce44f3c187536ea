"""Addresses of a CUDA device and the memory behind them, each by calls of the driver of its own."""

import ctypes
from functools import cache

import torch

_SUCCESS, _OUT_OF_MEMORY = 0, 2
_CAN_MAP = 102  # CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
_ON_DEVICE = 1  # CU_MEM_LOCATION_TYPE_DEVICE
_PINNED = 1  # CU_MEM_ALLOCATION_TYPE_PINNED
_READ_WRITE = 3  # CU_MEM_ACCESS_FLAGS_PROT_READWRITE


class _Location(ctypes.Structure):
    """The CUmemLocation of a device."""

    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class _Properties(ctypes.Structure):
    """A CUmemAllocationProp; what is not named here stays 0."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", _Location),
        ("win32_meta_data", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    )


class _Access(ctypes.Structure):
    """The CUmemAccessDesc of a device."""

    _fields_ = (("location", _Location), ("flags", ctypes.c_int))


class CudaMapping:
    """Owns: a range of addresses of a device, and what is mapped there.

    The calling thread is on the device, which has an index; what it has enqueued may use the range
    until it waits.
    """

    def __init__(self, num_bytes: int, device: torch.device) -> None:
        """Reserve addresses, without memory. Raises RuntimeError as every call here."""
        self._device = device.index
        _enter(self._device)
        location = _Location(_ON_DEVICE, _number(self._device))
        self._properties = _Properties(type=_PINNED, location=location)
        unit = ctypes.c_size_t()
        _call("cuMemGetAllocationGranularity", ctypes.byref(unit), self._pointer, ctypes.c_int(0))

        self.size = -(-num_bytes // unit.value) * unit.value
        address = ctypes.c_uint64()
        nowhere, no_flags = ctypes.c_uint64(0), ctypes.c_uint64(0)
        size, default = ctypes.c_size_t(self.size), ctypes.c_size_t(0)
        _call("cuMemAddressReserve", ctypes.byref(address), size, default, nowhere, no_flags)
        self.address = address.value
        self._handle: int | None = None

    @property
    def is_mapped(self) -> bool:
        """Whether there is memory."""
        return self._handle is not None

    def map(self) -> None:
        """Put memory there. Raises torch.OutOfMemoryError if the device has not so much."""
        if self.is_mapped:
            return
        _enter(self._device)
        handle = ctypes.c_uint64()
        status = self._create(handle)
        if status == _OUT_OF_MEMORY:
            # As torch does: what it keeps for later may be what is missing.
            torch.cuda.empty_cache()
            status = self._create(handle)
        if status == _OUT_OF_MEMORY:
            free, total = torch.cuda.mem_get_info(self._device)
            raise torch.OutOfMemoryError(
                f"CUDA out of memory: {self.size} bytes are wanted at once; {free} of {total} are "
                "free"
            )
        _check("cuMemCreate", status)

        place, size = ctypes.c_uint64(self.address), ctypes.c_size_t(self.size)
        no_offset, no_flags = ctypes.c_size_t(0), ctypes.c_uint64(0)
        try:
            _call("cuMemMap", place, size, no_offset, handle, no_flags)
        except RuntimeError:
            _call("cuMemRelease", handle)
            raise
        self._handle = handle.value
        access = _Access(self._properties.location, _READ_WRITE)
        _call("cuMemSetAccess", place, size, ctypes.byref(access), ctypes.c_size_t(1))

    def unmap(self) -> None:
        """Wait for the device, and free the memory. The addresses stay reserved."""
        handle, self._handle = self._handle, None
        if handle is None:
            return
        torch.cuda.synchronize(self._device)
        _call("cuMemUnmap", ctypes.c_uint64(self.address), ctypes.c_size_t(self.size))
        _call("cuMemRelease", ctypes.c_uint64(handle))

    def close(self) -> None:
        """Free the memory and the addresses; nobody may use them any more."""
        self.unmap()
        _call("cuMemAddressFree", ctypes.c_uint64(self.address), ctypes.c_size_t(self.size))

    def _create(self, handle: ctypes.c_uint64) -> int:
        size, no_flags = ctypes.c_size_t(self.size), ctypes.c_uint64(0)
        create = _driver().cuMemCreate
        return int(create(ctypes.byref(handle), size, self._pointer, no_flags))

    @property
    def _pointer(self) -> object:
        return ctypes.byref(self._properties)


def can_map(device: torch.device) -> bool:
    """Whether this device lets memory be mapped; some that are shared out in parts do not."""
    _enter(device.index)
    can = ctypes.c_int()
    number = ctypes.c_int(_number(device.index))
    _call("cuDeviceGetAttribute", ctypes.byref(can), ctypes.c_int(_CAN_MAP), number)
    return bool(can.value)


def _enter(index: int) -> None:
    """Make the device's context that of this thread, in which it may not have done anything."""
    torch.cuda.synchronize(index)


def _number(index: int) -> int:
    """What the driver calls a device."""
    number = ctypes.c_int()
    _call("cuDeviceGet", ctypes.byref(number), ctypes.c_int(index))
    return number.value


@cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def _call(name: str, *arguments: object) -> None:
    _check(name, int(getattr(_driver(), name)(*arguments)))


def _check(name: str, status: int) -> None:
    if status == _SUCCESS:
        return
    text = ctypes.c_char_p()
    _driver().cuGetErrorName(ctypes.c_int(status), ctypes.byref(text))
    error = (text.value or str(status).encode()).decode()
    raise RuntimeError(f"{name} returned {error}")
