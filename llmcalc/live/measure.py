"""Memory and time of a run, measured: what the device holds, its peak, what there is to have."""

from __future__ import annotations

import os
import resource
import sys
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes at one moment: of tensors, of the allocator, as the driver reports, and the peak.

    On the CPU ``allocated`` is the process's resident memory, and the others are the same or
    absent.
    """

    allocated: int
    peak: int
    reserved: int | None = None
    driver: int | None = None

    @property
    def outside(self) -> int | None:
        """What the driver reports beyond the allocator: context, kernels, other processes."""
        return None if self.driver is None or self.reserved is None else self.driver - self.reserved


def memory(device: torch.device) -> Memory:
    """What the device holds now."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return Memory(
            allocated=torch.cuda.memory_allocated(device),
            peak=torch.cuda.max_memory_allocated(device),
            reserved=torch.cuda.memory_reserved(device),
            driver=total - free,
        )
    if device.type == "mps":
        held = torch.mps.current_allocated_memory()
        driver = torch.mps.driver_allocated_memory()
        return Memory(allocated=held, peak=held, driver=driver)
    return Memory(allocated=_resident(), peak=peak_resident())


def reset_peak(device: torch.device) -> None:
    """Begins to look for a new peak, where the device can."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def wait(device: torch.device) -> None:
    """Waits until everything asked of the device is done, so that time means something."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def _resident() -> int:
    """Bytes of this process that are in memory now; its peak where that is all there is to know."""
    statm = Path("/proc/self/statm")
    if not statm.exists():
        return peak_resident()
    pages = int(statm.read_text().split()[1])  # the second field of proc(5) is resident pages
    return pages * os.sysconf("SC_PAGE_SIZE")


def peak_resident() -> int:
    """The most memory that this process has held, in bytes.

    Getrusage counts the parent's too where one forked.
    """
    high_water = _kibibytes(Path("/proc/self/status"), "VmHWM:")
    if high_water is not None:
        return high_water * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # macOS counts in bytes


def _kibibytes(table: Path, key: str) -> int | None:
    """A line of one of the kernel's tables, None where there is none."""
    if table.exists():
        for line in table.read_text().splitlines():
            if line.startswith(key):
                return int(line.split()[1])
    return None


def available(device: torch.device) -> int:
    """Bytes that can be had on a device now."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    free = _kibibytes(Path("/proc/meminfo"), "MemAvailable:")
    if free is not None:
        return free * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def timed(device: torch.device, into: list[float]) -> Iterator[None]:
    """Appends the seconds that a block took on the device."""
    wait(device)
    began = time.perf_counter()
    yield
    wait(device)
    into.append(time.perf_counter() - began)


class Alive(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Bytes of the tensors that operations made and that are alive, and their peak.

    What was there before is left out.

    Room that a kernel takes for itself while it runs is not seen; on CUDA
    ``torch.cuda.max_memory_allocated`` sees it.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = 0
        self.peak = 0
        self._seen: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._foreign: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for given in tree_leaves((args, kwargs)):
            if isinstance(given, torch.Tensor):
                key = given.untyped_storage()._cdata
                if key not in self._seen:  # it was there before
                    self._foreign.add(key)
        out = func(*args, **kwargs)
        for made in tree_leaves(out):
            if isinstance(made, torch.Tensor):
                self._add(made.untyped_storage())
        return out

    def _add(self, storage: torch.UntypedStorage) -> None:
        key, n_bytes = storage._cdata, storage.nbytes()
        if key in self._seen or key in self._foreign:
            return
        self._seen[key] = weakref.ref(storage, lambda _: self._gone(key, n_bytes))
        self.now += n_bytes
        self.peak = max(self.peak, self.now)

    def _gone(self, key: int, n_bytes: int) -> None:
        self._seen.pop(key, None)
        self.now -= n_bytes
