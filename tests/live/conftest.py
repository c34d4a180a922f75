"""Live tests need torch; one thread, because two on a busy machine are slower than one."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Iterator

import pytest

collect_ignore_glob = [] if importlib.util.find_spec("torch") else ["test_*.py"]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Quiet, with one thread."""
    import torch

    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
