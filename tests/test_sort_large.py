"""What issue 4 asks of large and mixed input: an interrupted sort out of core, a million empty segments."""

import sys

import pytest
import torch

from torch_gpuprims import segment_sort, sort_out_of_core


@pytest.mark.parametrize("at", [1, 5, 9, 12])
def test_an_interrupted_sort_out_of_core_loses_nothing(at, device, monkeypatch):
    module, calls = sys.modules["torch_gpuprims.sort_out_of_core"], []
    whole = module._sorted

    def interrupted(*args):
        calls.append(args)
        if len(calls) == at:
            raise KeyboardInterrupt
        return whole(*args)

    keys, payload = torch.randn(50_000, generator=torch.Generator().manual_seed(1)), torch.arange(50_000)
    before = keys.clone()
    budget = keys.nbytes * 3 // 8 * 10
    monkeypatch.setattr(module, "_sorted", interrupted)
    with pytest.raises(KeyboardInterrupt):
        sort_out_of_core(keys, payload, budget=budget, device=device)
    assert torch.equal(keys, before)
    assert torch.equal(payload, torch.arange(50_000))
    got, order = sort_out_of_core(keys, payload, budget=budget, device=device)  # and nothing stays behind
    assert torch.equal(got, keys[order])
    assert torch.equal(order, keys.sort(stable=True).indices)


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")
def test_a_million_empty_segments_and_one_of_1e8():
    lengths = torch.zeros(1_000_400, dtype=torch.int64)
    lengths[500_000] = 100_000_000
    lengths[1_000_000:] = torch.arange(400)
    lengths[7], lengths[900_000] = 5000, 1_000_000
    indptr = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
    g = torch.Generator("cuda").manual_seed(2)
    keys = torch.randint(
        -(1 << 20), 1 << 20, (int(indptr[-1]),), device="cuda", dtype=torch.int32, generator=g
    )
    values, indices, _ = segment_sort(keys, indptr.cuda())
    for segment in (7, 500_000, 900_000, 1_000_001, 1_000_032, 1_000_200, 1_000_399):
        begin, end = indptr[segment].item(), indptr[segment + 1].item()
        expected = keys[begin:end].sort(stable=True)
        assert torch.equal(values[begin:end], expected.values), segment
        assert torch.equal(indices[begin:end], expected.indices + begin), segment
