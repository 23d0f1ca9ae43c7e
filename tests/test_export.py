"""What torch.export makes of modules can be saved: their results are NamedTuples, written by a name."""

from pathlib import Path
from typing import Any

import pytest
import torch

from torch_gpuprims import nn, segment_sort

x = torch.arange(32.0).mul(7).remainder(11).reshape(4, 8)


class SegmentSort(torch.nn.Module):
    def forward(self, keys: torch.Tensor, indptr: torch.Tensor) -> Any:
        return segment_sort(keys, indptr)


@pytest.mark.parametrize(
    "module, args",
    [
        (nn.TopK(3), (x,)),
        (nn.Sort(), (x,)),
        (nn.Stats(-1), (x,)),
        (nn.TopKGate(2, num_experts=8), (x,)),
        (nn.SegmentTopK(2), (x[0], torch.tensor([0, 3, 8]))),
        (SegmentSort(), (x[0], torch.tensor([0, 3, 8]))),
    ],
    ids=lambda value: type(value).__name__,
)
def test_exported_modules_can_be_saved(
    module: torch.nn.Module, args: tuple[torch.Tensor, ...], tmp_path: Path
) -> None:
    torch.export.save(torch.export.export(module, args), tmp_path / "module.pt2")
    found, want = torch.export.load(tmp_path / "module.pt2").module()(*args), module(*args)
    assert type(found) is type(want)
    assert all(torch.equal(a, b) for a, b in zip(found, want, strict=True) if b is not None)
