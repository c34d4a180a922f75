"""Memory and time of a run, measured: what the device holds, its peak, and what a machine has to
give.
"""

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
    """Bytes at one moment: allocated to tensors, reserved by the allocator, in use as the driver
    reports, and the peak.

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
            torch.cuda.memory_allocated(device),
            torch.cuda.max_memory_allocated(device),
            torch.cuda.memory_reserved(device),
            total - free,
        )
    if device.type == "mps":
        held = torch.mps.current_allocated_memory()
        return Memory(held, held, None, torch.mps.driver_allocated_memory())
    return Memory(_resident(), peak_resident())


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
    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return peak_resident()


def peak_resident() -> int:
    """The most memory that this process has held, in bytes.

    Getrusage counts the parent's too where one forked.
    """
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def available(device: torch.device) -> int:
    """Bytes that can be had on a device now."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
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
        self.now, self.peak = 0, 0
        self._seen: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._foreign: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for t in tree_leaves((args, kwargs)):
            if isinstance(t, torch.Tensor) and t.untyped_storage()._cdata not in self._seen:
                self._foreign.add(t.untyped_storage()._cdata)
        out = func(*args, **kwargs)
        for t in tree_leaves(out):
            if isinstance(t, torch.Tensor):
                self._add(t.untyped_storage())
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
