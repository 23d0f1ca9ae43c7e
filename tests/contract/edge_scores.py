"""edge_softmax, gatv2_score and the ops of their gradients, in the contract table."""

from typing import Any

import torch

from torch_gpuprims import edge_softmax, gatv2_score

from .aggregate import csr
from .attention import _NO_WRAPPER, _edges, _graph, _leaves, _term, _x, _zeros, raw
from .spec import Call, Device, Op, distinct


def _scores(n: int, device: Device, dtype: torch.dtype, seed: int = 3) -> torch.Tensor:
    return _term(_edges(n), device, dtype, seed)


EDGE_SOFTMAX = Op(
    word="attention",
    samples=lambda device: [
        (_scores(9, device, torch.float32), csr(9, device)["indptr"]),
        (
            _scores(9, device, torch.float32).requires_grad_(), csr(9, device)["indptr"],
            csr(9, device)["edge_ids"],
        ),
    ],
    calls={
        "by graph": Call(
            lambda scores, graph: edge_softmax(graph, scores),
            lambda n, device, dtype: (_scores(n, device, dtype),),
            _graph,
        ),
    },
    empties=lambda device: [
        (lambda: edge_softmax(*_graph(1, device), _zeros(device, 0, 2)), (0, 2)),
        (lambda: edge_softmax(*_graph(9, device), _zeros(device, 12, 0)), (12, 0)),
    ],
    errors=[
        (
            "edge_softmax: scores must have 2 dimensions [edges, heads], got 1",
            lambda device: (_zeros(device, 12), csr(9, device)["indptr"]),
        ),
        (
            "edge_softmax: edge_ids must have 11 elements (the number of edges), got 12",
            lambda device: (_zeros(device, 11, 2), csr(9, device)["indptr"], csr(9, device)["edge_ids"]),
        ),
    ],
    lacks={"zero_dim": "scores have two dimensions", "huge": "offsets are 64-bit as in neighbor_attention"},
)  # fmt: skip

EDGE_SOFTMAX_GRAD = Op(
    word="attention",
    samples=lambda device: [
        (
            _scores(9, device, torch.float32).requires_grad_(),
            _scores(9, device, torch.float32, 4).requires_grad_(), csr(9, device)["indptr"],
            csr(9, device)["edge_ids"],
        ),
    ],
    calls={
        "any matrix": Call(
            lambda grad, alpha, graph: raw.edge_softmax_grad(grad, alpha, graph["indptr"], graph["edge_ids"]),
            lambda n, device, dtype: (_scores(n, device, dtype), _scores(n, device, dtype, 4)),
            lambda n, device: (csr(n, device),),
        ),
    },
    empties=lambda device: [
        (
            lambda: raw.edge_softmax_grad(
                _zeros(device, 12, 0), _zeros(device, 12, 0), csr(9, device)["indptr"]
            ),
            (12, 0),
        ),
    ],
    errors=[
        (
            "edge_softmax_grad: alpha must have shape [12, 2] (edges, heads), got [12, 1]",
            lambda device: (_zeros(device, 12, 2), _zeros(device, 12, 1), csr(9, device)["indptr"]),
        ),
    ],
    lacks={name: _NO_WRAPPER[name] for name in ("zero_dim", "huge", "func_grad")},
)  # fmt: skip


def _gatv2_parts(n: int, device: Device, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    return (
        _x(n, device, dtype), _x(n, device, dtype, 5) + 0.013,
        distinct(2, 3, device=device, dtype=dtype, seed=6),
        distinct(_edges(n), 2, 3, device=device, dtype=dtype, seed=7) + 0.0171,
    )  # fmt: skip


def _gatv2_samples(device: Device) -> list[tuple[Any, ...]]:
    g, parts = tuple(csr(9, device).values()), _gatv2_parts(9, device, torch.float32)
    return [(*parts[:3], None, *g[:2]), (*_leaves(parts), *g)]


GATV2_SCORE = Op(
    word="attention",
    samples=_gatv2_samples,
    calls={
        "with edges": Call(
            lambda x_src, x_dst, att, edge, graph: gatv2_score(
                x_src, x_dst, att, graph, edge, negative_slope=0.2
            ),
            _gatv2_parts,
            _graph,
        ),
        "without": Call(
            lambda x_src, x_dst, att, graph: gatv2_score(x_src, x_dst, att, graph, negative_slope=0.2),
            lambda n, device, dtype: _gatv2_parts(n, device, dtype)[:3],
            _graph,
        ),
    },
    empties=lambda device: [
        (
            lambda: gatv2_score(
                _zeros(device, 9, 2, 0), _zeros(device, 9, 2, 0), _zeros(device, 2, 0), *_graph(9, device)
            ),
            (12, 2),
        ),
        (
            lambda: gatv2_score(
                _zeros(device, 1, 2, 3), _zeros(device, 1, 2, 3), _zeros(device, 2, 3), *_graph(1, device)
            ),
            (0, 2),
        ),
    ],
    errors=[
        (
            "gatv2_score: x_dst must have shape [9, 2, 3] (destinations, heads, channels), got [8, 2, 3]",
            lambda device: (
                _x(9, device, torch.float32), _x(8, device, torch.float32), _zeros(device, 2, 3), None,
                *csr(9, device).values(),
            ),
        ),
        (
            "gatv2_score: att must have shape [2, 3] (heads, channels), got [3, 2]",
            lambda device: (
                _x(9, device, torch.float32), _x(9, device, torch.float32), _zeros(device, 3, 2), None,
                *csr(9, device).values(),
            ),
        ),
    ],
    lacks={"zero_dim": "features have three dimensions", "huge": "as neighbor_attention"},
)  # fmt: skip

GATV2_SCORE_GRAD = Op(
    word="attention",
    samples=lambda device: [
        (
            _scores(9, device, torch.float32), *_gatv2_parts(9, device, torch.float32),
            *csr(9, device).values(),
        ),
    ],
    calls={
        "with edges": Call(
            lambda grad, x_src, x_dst, att, edge, graph: raw.gatv2_score_grad(
                grad, x_src, x_dst, att, edge, *graph.values()
            ),
            lambda n, device, dtype: (_scores(n, device, dtype), *_gatv2_parts(n, device, dtype)),
            lambda n, device: (csr(n, device),),
        ),
    },
    empties=lambda device: [
        (
            lambda: raw.gatv2_score_grad(
                _zeros(device, 12, 2), _zeros(device, 9, 2, 0), _zeros(device, 9, 2, 0), _zeros(device, 2, 0),
                None, *csr(9, device).values(),
            ),
            (9, 2, 0),
        ),
    ],
    errors=[
        (
            "gatv2_score_grad: grad must have shape [12, 2] (edges, heads), got [12, 1]",
            lambda device: (
                _zeros(device, 12, 1), *_gatv2_parts(9, device, torch.float32), *csr(9, device).values()
            ),
        ),
    ],
    lacks=_NO_WRAPPER,
)  # fmt: skip
