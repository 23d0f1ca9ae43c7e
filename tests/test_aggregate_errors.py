"""Bad input: messages, hostile offsets and ids."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from aggregate_cases import random_graph, raw
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map_only

from torch_gpuprims import neighbor_aggregate
from torch_gpuprims.aggregate import REDUCE
from torch_gpuprims.nn import NeighborAggregation


def arguments(device, **changes):
    graph = random_graph(6, 25, device)
    usual = {
        "x": torch.rand(6, 3, device=device), "indptr": graph.indptr, "indices": graph.indices,
        "edge_ids": graph.edge_ids, "edge_weight": None, "t_indptr": None, "t_indices": None,
        "t_edge_ids": None, "reduce": 0, "want_arg": False, "promises": 0,
    }  # fmt: skip
    for name, change in changes.items():
        usual[name] = change(usual[name]) if callable(change) else change
    return tuple(usual.values())


RAW_ERRORS = {
    "reduce must be 0 (sum), 1 (mean), 2 (max) or 3 (min), got 7": {"reduce": 7},
    "x must be float16, bfloat16, float32 or float64, got complex64": {"x": lambda t: t.to(torch.complex64)},
    "x must have 2 dimensions [rows, features], got 3": {"x": lambda t: t[None]},
    "indptr must have 1 dimension, got 2": {"indptr": lambda t: t[None]},
    "indptr must be int32 or int64, got float32": {"indptr": lambda t: t.float()},
    "indptr must have at least 1 element, got 0": {"indptr": lambda t: t[:0]},
    "indices must be int32 or int64, got int16": {"indices": lambda t: t.short()},
    "edge_ids must have the dtype of indptr (int32), got int64": {"edge_ids": lambda t: t.long()},
    "edge_ids must have 25 elements (the number of edges), got 24": {"edge_ids": lambda t: t[1:]},
    "edge_weight must have shape [25] (the number of edges), got [24]": {
        "edge_weight": lambda _: torch.rand(24)
    },
    "edge_weight must have shape [25] (the number of edges), got [25, 1]": {
        "edge_weight": lambda _: torch.rand(25, 1)
    },
    "edge_weight must have the dtype of x (float32), got float64": {
        "edge_weight": lambda _: torch.rand(25).double()
    },
    "t_indptr and t_indices must be given together": {
        "t_indptr": lambda _: torch.zeros(2, dtype=torch.int32)
    },
}


@pytest.mark.parametrize("message", RAW_ERRORS)
def test_raw_messages_are_the_same_everywhere(message, device):
    args = [
        a.to(device) if isinstance(a, torch.Tensor) else a for a in arguments("cpu", **RAW_ERRORS[message])
    ]
    with pytest.raises(RuntimeError, match=f"^neighbor_aggregate: {re.escape(message)}$"):
        raw.neighbor_aggregate(*args)
    with FakeTensorMode() as mode:
        fakes = tree_map_only(torch.Tensor, mode.from_tensor, args)
        with pytest.raises(RuntimeError, match=f"^neighbor_aggregate: {re.escape(message)}$"):
            raw.neighbor_aggregate(*fakes)


def test_devices_differ_without_a_gpu(device):
    graph, x = random_graph(6, 25, device), torch.rand(6, 3, device=device)
    for other in (x.to("meta"), x.to("meta").requires_grad_()):
        with pytest.raises(RuntimeError, match=r"^neighbor_aggregate: indptr must be on the device of x$"):
            neighbor_aggregate(other, graph)
    for mine in (x, x.clone().requires_grad_()):
        words = r"^neighbor_aggregate: edge_weight must be on the device of x$"
        with pytest.raises(RuntimeError, match=words):
            neighbor_aggregate(mine, graph, torch.rand(25, device="meta"))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_devices_differ():
    graph = random_graph(6, 25, "cuda")
    for x in (torch.rand(6, 3), torch.rand(6, 3, requires_grad=True)):
        with pytest.raises(RuntimeError, match="neighbor_aggregate: indptr must be on the device of x"):
            neighbor_aggregate(x, graph)
    with pytest.raises(RuntimeError, match="neighbor_aggregate: edge_weight must be on the device of x"):
        neighbor_aggregate(torch.rand(6, 3, device="cuda"), graph, torch.rand(25))


def test_wrapper_messages(device):
    graph, x = random_graph(6, 25, device), torch.rand(6, 3, device=device)
    few = "neighbor_aggregate: x must have at least 6 rows \\(the graph's sources\\), got 5"
    cases = [
        (RuntimeError, few, lambda: neighbor_aggregate(x[:5], graph)),
        (RuntimeError, few, lambda: neighbor_aggregate(x[:5].clone().requires_grad_(), graph)),
        (
            ValueError,
            "reduce must be one of sum, mean, max, min, got 'median'",
            lambda: neighbor_aggregate(x, graph, reduce="median"),
        ),
        (TypeError, "graph must be a Graph, got Tensor", lambda: neighbor_aggregate(x, x)),
        (RuntimeError, "x must be a dense tensor", lambda: neighbor_aggregate(x.to_sparse(), graph)),
        (
            RuntimeError,
            "edge_weight must be a dense tensor",
            lambda: neighbor_aggregate(x, graph, torch.ones(25, device=device).to_sparse()),
        ),
        (RuntimeError, "at least 1 dimension, got 0", lambda: neighbor_aggregate(x[0, 0], graph)),
        (RuntimeError, "float32 or float64, got int64", lambda: neighbor_aggregate(x.long(), graph)),
        (ValueError, "NeighborAggregation: reduce must be one of", lambda: NeighborAggregation("median")),
    ]
    for kind, message, call in cases:
        with pytest.raises(kind, match=message):
            call()


N = 4000
HOSTILE = {
    "alternating": [0, N] * 50 + [0],
    "alternating to the end": [0, N] * 50,
    "negative": [0, -5, 10, N],
    "huge": [0, 2**62, -(2**62), N],
    "start": [1, 5, N],
    "short": [0, 5, N - 1],
    "long": [0, 5, N + 1],
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
def test_hostile_offsets_fill_the_outputs(name, index_dtype, device):
    values = torch.tensor(HOSTILE[name])
    if index_dtype == torch.int32:
        values = values.clamp(-(2**31), 2**31 - 1)
    indptr = values.to(device, index_dtype)
    rows = len(indptr) - 1
    indices = torch.zeros(N, dtype=index_dtype, device=device)
    x = torch.rand(3, 70, device=device)
    for reduce in REDUCE.values():
        out, arg = raw.neighbor_aggregate(
            x, indptr, indices, None, None, None, None, None, reduce, reduce > 1
        )
        assert out.isnan().all()
        assert arg.eq(-1).all()
    chosen = torch.zeros(3, 70, dtype=index_dtype, device=device)
    assert raw.neighbor_extreme_grad(x, chosen, indptr, indices).isnan().all()
    assert raw.sddmm(torch.rand(rows, 70, device=device), x, indptr, indices).isnan().all()
    assert neighbor_aggregate(x, random_graph(3, 5, device)).isfinite().all()  # the context lives


def test_ids_out_of_range_are_nan_and_never_followed(device):
    """Only the rows that hold them; not validated by raw ops, never used as an address."""
    indptr = torch.tensor([0, 2, 4, 5], device=device)
    for bad in (-1, 3, 2**40, -(2**62)):
        indices = torch.tensor([0, bad, 1, 2, 0], device=device)
        x = torch.ones(3, 5, device=device)
        for reduce in REDUCE.values():
            out = raw.neighbor_aggregate(x, indptr, indices, None, None, None, None, None, reduce)[0]
            assert out[0].isnan().all()
            assert out[1:].isfinite().all()
        dots = raw.sddmm(x, x, indptr, indices)
        assert dots.isnan().tolist() == [False, True, False, False, False]
        ids = torch.tensor([0, bad if abs(bad) > 3 else 7, 2, 3, 4], device=device)
        good = torch.tensor([0, 1, 1, 2, 0], device=device)
        weighted = raw.neighbor_aggregate(x, indptr, good, ids, torch.ones(5, device=device))[0]
        assert weighted[0].isnan().all()
        assert weighted[1:].isfinite().all()
        assert raw.sddmm(x, x, indptr, good, ids)[[0, 2, 3, 4]].tolist() == [5] * 4


CHECKED = """
import torch, torch_gpuprims
x = torch.rand(3, 4, device="{device}")
def run(indptr, indices, ids=None):
    tensors = [None if v is None else torch.tensor(v, device="{device}") for v in (indptr, indices, ids)]
    try:
        torch.ops.gpuprims.neighbor_aggregate(x, *tensors)
        print("fine")
    except RuntimeError as error:
        print(error)
run([0, 2, 1, 3], [0, 1, 2])
run([0, 2, 3], [0, 1, 5])
run([0, 2, 3], [0, 1, 2], [0, 1, 3])
run([0, 2, 3], [0, 1, 2], [0, 2, 1])
"""


def test_check_variable_raises(device):
    result = subprocess.run(
        [sys.executable, "-c", CHECKED.format(device=device)], capture_output=True, text=True, check=True,
        env={**os.environ, "GPUPRIMS_CHECK": "1"}, cwd=Path(__file__).parents[1],
    )  # fmt: skip
    assert result.stdout.splitlines() == [
        "neighbor_aggregate: indptr must start at 0, not decrease and end at the number of edges (3)",
        "neighbor_aggregate: indices must be in [0, 3)",
        "neighbor_aggregate: edge_ids must be in [0, 3)",
        "fine",
    ]


def test_raw_gradient_needs_its_arguments(device):
    args = arguments(device, x=lambda t: t.requires_grad_())
    with pytest.raises(RuntimeError, match="neighbor_aggregate: a gradient needs the transposed graph"):
        raw.neighbor_aggregate(*args)[0].sum().backward()
    with pytest.raises(RuntimeError, match="a gradient of max or min needs want_arg=True"):
        raw.neighbor_aggregate(*args[:-3], 2, False, 0)[0].sum().backward()
