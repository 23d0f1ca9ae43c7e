"""neighbor_aggregate, and the two ops of its gradients, in the contract table."""

from collections.abc import Callable
from typing import Any

import torch

from torch_gpuprims import Graph, neighbor_aggregate, sddmm

from .spec import Call, Device, Op, distinct

raw = torch.ops.gpuprims


def _degrees(n: int, more: int = 0) -> torch.Tensor:
    degrees = torch.arange(n) % 4
    if n > 1:
        degrees[-1] += more
    return degrees


def csr(n: int, device: Device, more: int = 0) -> dict[str, torch.Tensor]:
    """A graph and its transpose: of n nodes, d reads d % 4 others from d + 1 on, the last one `more` besides;
    edge ids are shuffled."""
    degrees = _degrees(n, more)
    destination = torch.repeat_interleave(torch.arange(n), degrees)
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), degrees.cumsum(0)])
    edges = len(destination)
    source = (destination + 1 + torch.arange(edges) - indptr[destination]) % max(n, 1)
    ids = torch.randperm(edges, generator=torch.Generator().manual_seed(n))
    order = (source * max(n, 1) + destination).argsort()
    t_indptr = torch.cat([torch.zeros(1, dtype=torch.int64), torch.bincount(source, minlength=n).cumsum(0)])
    parts = {
        "indptr": indptr, "indices": source, "edge_ids": ids,
        "t_indptr": t_indptr, "t_indices": destination[order], "t_edge_ids": ids[order],
    }  # fmt: skip
    return {name: part.to(device) for name, part in parts.items()}


def _features(n: int, device: Device, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    return distinct(n, 3, device=device, dtype=dtype, seed=seed)


def _weights(n: int, device: Device, dtype: torch.dtype, more: int = 0) -> torch.Tensor:
    return distinct(int(_degrees(n, more).sum()), device=device, dtype=dtype, seed=9) + 2.1


def _graph(n: int, device: Device) -> tuple[Graph]:
    parts = csr(n, device, more=1)  # without it, 4 nodes have as many edges as their plan has elements
    return (Graph.from_csr(parts["indptr"], parts["indices"], num_src=n).prepare(),)


def _aggregate_samples(device: Device) -> list[tuple[Any, ...]]:
    g = csr(9, device)
    x, w = _features(9, device, torch.float32), _weights(9, device, torch.float32)
    graph, transpose = tuple(g.values())[:3], tuple(g.values())[3:]
    plain = (g["indptr"], g["indices"])
    return [
        (x, *plain),
        (x, *plain, None, w, None, None, None, 1),
        (x.clone().requires_grad_(), *graph, None, *transpose),
        (x.clone().requires_grad_(), *graph, w.clone().requires_grad_(), *transpose),
        (x, *graph, w.clone().requires_grad_(), *transpose, 1),
        (x.clone().requires_grad_(), *graph, w.clone().requires_grad_(), *transpose, 2, True),
        (x, *graph, w, None, None, None, 3, True),
        (x[:, :0], *plain),
    ]


def _aggregate_empties(device: Device) -> list[tuple[Callable[[], Any], tuple[int, ...]]]:
    def zeros(*shape: int) -> torch.Tensor:
        return torch.zeros(shape, device=device)

    return [
        (lambda: neighbor_aggregate(zeros(0, 3), *_graph(0, device)), (0, 3)),
        (lambda: neighbor_aggregate(zeros(9, 0), *_graph(9, device)), (9, 0)),
        (lambda: neighbor_aggregate(zeros(1, 3), *_graph(1, device)), (1, 3)),
        (lambda: neighbor_aggregate(zeros(1, 3), *_graph(1, device), reduce="max"), (1, 3)),
    ]


def _aggregate_huge(device: Device, dtype: torch.dtype) -> None:
    rows = 2**25 + 1  # of 64 features
    x = torch.zeros(rows, 64, dtype=dtype, device=device)
    x[[0, rows - 1]] = torch.tensor([[1.0], [2.0]], dtype=dtype, device=device)
    indptr = torch.tensor([0, 2, 2, 3], device=device)
    indices = torch.tensor([0, rows - 1, rows - 1], device=device)
    out = neighbor_aggregate(x, Graph.from_csr(indptr, indices, num_src=rows))
    assert out[:, 63].tolist() == [3, 0, 2]


def _aggregate_call(reduce: str, weighted: bool) -> Call:
    if not weighted:
        return Call(
            lambda x, graph: neighbor_aggregate(x, graph, reduce=reduce),
            lambda n, device, dtype: (_features(n, device, dtype),),
            _graph,
        )
    return Call(
        lambda x, weight, graph: neighbor_aggregate(x, graph, weight, reduce),
        lambda n, device, dtype: (_features(n, device, dtype), _weights(n, device, dtype, 1)),
        _graph,
    )


def _zeros(device: Device, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.zeros(shape, device=device, dtype=dtype)


def _plain(device: Device) -> tuple[torch.Tensor, torch.Tensor]:
    g = csr(9, device)
    return g["indptr"], g["indices"]


NEIGHBOR_AGGREGATE = Op(
    word="aggregate",
    samples=_aggregate_samples,
    calls={
        f"{reduce}{' weighted' * weighted}": _aggregate_call(reduce, weighted)
        for reduce in ("sum", "mean", "max", "min")
        for weighted in (False, True)
    },
    empties=_aggregate_empties,
    errors=[
        (
            "neighbor_aggregate: x must have 2 dimensions [rows, features], got 1",
            lambda device: (_zeros(device, 9), *_plain(device)),
        ),
        (
            "neighbor_aggregate: x must be float16, bfloat16, float32 or float64, got int64",
            lambda device: (_zeros(device, 9, 3, dtype=torch.int64), *_plain(device)),
        ),
        (
            "neighbor_aggregate: indptr must have 1 dimension, got 2",
            lambda device: (_zeros(device, 9, 3), _plain(device)[0][None], _plain(device)[1]),
        ),
        (
            "neighbor_aggregate: edge_weight must have shape [12] (the number of edges), got [5]",
            lambda device: (_zeros(device, 9, 3), *_plain(device), None, _zeros(device, 5)),
        ),
        (
            "neighbor_aggregate: x must have at least 9 rows (the graph's sources), got 8",
            lambda device: (
                _zeros(device, 8, 3), *_plain(device), None, None, *tuple(csr(9, device).values())[3:]
            ),
        ),
    ],
    huge=_aggregate_huge,
    one_byte=torch.float16,  # features are floats
    lacks={"zero_dim": "a feature matrix has two dimensions"},
)  # fmt: skip

_NO_WRAPPER = {
    "zero_dim": "a feature matrix has two dimensions",
    "huge": "as neighbor_aggregate, whose walk of the rows it shares",
    "func_grad": "has no public wrapper, and torch.func does not take torch.library's gradients",
}


def _sddmm_samples(device: Device) -> list[tuple[Any, ...]]:
    g = csr(9, device)
    a, b = _features(9, device, torch.float32), _features(9, device, torch.float32, seed=1)
    graph, transpose = tuple(g.values())[:3], tuple(g.values())[3:]
    return [
        (a, b, *graph[:2]),
        (a.clone().requires_grad_(), b.clone().requires_grad_(), *graph, None, *transpose),
        (a, b, *graph, _took(9, device)),
    ]


def _took(n: int, device: Device) -> torch.Tensor:
    """`arg` of a max over the graph csr(n): the edge ids that each element of the output came from."""
    graph = tuple(csr(n, device).values())[:3]
    return raw.neighbor_aggregate(_features(n, device, torch.float64), *graph, reduce=2, want_arg=True)[1]


def _sddmm(a: torch.Tensor, b: torch.Tensor, g: dict[str, torch.Tensor]) -> torch.Tensor:
    return raw.sddmm(
        a, b, g["indptr"], g["indices"], g["edge_ids"], None, g["t_indptr"], g["t_indices"], g["t_edge_ids"]
    )


SDDMM = Op(
    word="aggregate",
    samples=_sddmm_samples,
    calls={
        "edges": Call(
            _sddmm,
            lambda n, device, dtype: (
                _features(n, device, dtype), _features(n, device, dtype, seed=1)
            ),
            lambda n, device: (csr(n, device),),
            lacks={"func_grad": _NO_WRAPPER["func_grad"]},
        ),
        "graph": Call(
            sddmm,
            lambda n, device, dtype: (
                _features(n, device, dtype), _features(n, device, dtype, seed=1)
            ),
            _graph,
        ),
    },
    empties=lambda device: [
        (lambda: _sddmm(_zeros(device, 0, 3), _zeros(device, 0, 3), csr(0, device)), (0,)),
        (lambda: _sddmm(_zeros(device, 9, 0), _zeros(device, 9, 0), csr(9, device)), (12,)),
    ],
    errors=[
        (
            "sddmm: b must have the features of a (3), got 4",
            lambda device: (_zeros(device, 9, 3), _zeros(device, 9, 4), *_plain(device)),
        ),
        (
            "sddmm: a must have 9 rows (the graph's destinations), got 8",
            lambda device: (_zeros(device, 8, 3), _zeros(device, 9, 3), *_plain(device)),
        ),
    ],
    lacks={name: _NO_WRAPPER[name] for name in ("zero_dim", "huge")},
)  # fmt: skip


def _extreme_samples(device: Device) -> list[tuple[Any, ...]]:
    g = csr(9, device)
    grad, arg = _features(9, device, torch.float32), _took(9, device)
    graph, transpose = tuple(g.values())[:3], tuple(g.values())[3:]
    weight = _weights(9, device, torch.float32)
    return [
        (grad, arg, *transpose),
        (grad.clone().requires_grad_(), arg, *transpose, weight.clone().requires_grad_(), *graph),
    ]


def _extreme(
    grad: torch.Tensor, weight: torch.Tensor, arg: torch.Tensor, g: dict[str, torch.Tensor]
) -> torch.Tensor:
    return raw.neighbor_extreme_grad(
        grad,
        arg,
        g["t_indptr"],
        g["t_indices"],
        g["t_edge_ids"],
        weight,
        g["indptr"],
        g["indices"],
        g["edge_ids"],
    )


NEIGHBOR_EXTREME_GRAD = Op(
    word="aggregate",
    samples=_extreme_samples,
    calls={
        "weighted": Call(
            _extreme,
            lambda n, device, dtype: (_features(n, device, dtype), _weights(n, device, dtype)),
            lambda n, device: (_took(n, device), csr(n, device)),
        ),
    },
    empties=lambda device: [
        (
            lambda: _extreme(
                _zeros(device, 9, 0), _zeros(device, 12), _took(9, device)[:, :0], csr(9, device)
            ),
            (9, 0),
        ),
    ],
    errors=[
        (
            "neighbor_extreme_grad: arg must have the shape of grad [9, 3], got [9, 2]",
            lambda device: (
                _zeros(device, 9, 3),
                _zeros(device, 9, 2, dtype=torch.int64),
                *tuple(csr(9, device).values())[3:],
            ),
        ),
    ],
    lacks=_NO_WRAPPER,
)  # fmt: skip
