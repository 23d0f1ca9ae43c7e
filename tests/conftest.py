"""Devices, seeds and Hypothesis profiles shared by all tests."""

import os
import random
from collections.abc import Iterator
from typing import Any

import hypothesis
import numpy as np
import pytest
import torch
from devices import DEVICES

hypothesis.settings.register_profile("default", deadline=None, max_examples=60)
hypothesis.settings.register_profile("ci", deadline=None, max_examples=60, derandomize=True, print_blob=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "default")


@pytest.fixture(params=DEVICES, scope="session")
def device(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(autouse=True)
def seeds() -> None:
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


@pytest.fixture
def two_ranks() -> Iterator[tuple[Any, Any]]:
    """torch.distributed.tensor and a mesh of two ranks, of which this process is the first; no data moves."""
    distributed = pytest.importorskip("torch.distributed.tensor")
    if not torch.distributed.is_available():
        pytest.skip("PyTorch without torch.distributed")
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        yield distributed, torch.distributed.init_device_mesh("cpu", (2,))
    finally:
        torch.distributed.destroy_process_group()
