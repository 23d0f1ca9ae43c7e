"""neighbor_attention and the op of its gradient, in the contract table."""

from collections.abc import Callable
from typing import Any

import torch

from torch_gpuprims import Graph, neighbor_attention

from .aggregate import _degrees, csr
from .spec import Call, Device, Op, distinct

raw = torch.ops.gpuprims
HEADS, CHANNELS = 2, 3


def _x(n: int, device: Device, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    return distinct(n, HEADS, CHANNELS, device=device, dtype=dtype, seed=seed)


def _term(n: int, device: Device, dtype: torch.dtype, seed: int) -> torch.Tensor:
    return distinct(n, HEADS, device=device, dtype=dtype, seed=seed)


def _edges(n: int) -> int:
    return int(_degrees(n).sum())


def _graph(n: int, device: Device) -> tuple[Graph]:
    parts = csr(n, device)
    return (Graph.from_csr(parts["indptr"], parts["indices"], num_src=n).prepare(),)


def _zeros(device: Device, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.zeros(shape, device=device, dtype=dtype)


def _seed(device: Device) -> torch.Tensor:
    return torch.tensor(7, device=device)


def _parts(n: int, device: Device, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, ...]:
    return (
        _x(n, device, dtype), _term(n, device, dtype, 1), _term(n, device, dtype, 2),
        _term(_edges(n), device, dtype, 3),
    )  # fmt: skip


def _leaves(tensors: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return tuple(t.clone().requires_grad_() for t in tensors)


def _samples(device: Device) -> list[tuple[Any, ...]]:
    g, parts = tuple(csr(9, device).values()), _parts(9, device)
    return [
        (parts[0], parts[1], None, None, None, *g[:2]),
        (*_leaves(parts), None, *g),
        (*_leaves(parts), _seed(device), *g, 0.3, 0.5),
        (parts[0][:, :, :0], None, None, parts[3], None, *g[:3], None, None, None, 1.0),
    ]


def _empties(device: Device) -> list[tuple[Callable[[], Any], tuple[int, ...]]]:
    def call(n: int, heads: int, channels: int) -> torch.Tensor:
        return neighbor_attention(
            _zeros(device, n, heads, channels), *_graph(n, device), _zeros(device, n, heads)
        )

    return [
        (lambda: call(0, 2, 3), (0, 2, 3)),
        (lambda: call(9, 0, 3), (9, 0, 3)),
        (lambda: call(9, 2, 0), (9, 2, 0)),
        (lambda: call(1, 1, 1), (1, 1, 1)),
    ]


def _huge(device: Device, dtype: torch.dtype) -> None:
    rows = 2**25 + 1  # of 64 channels
    x = torch.zeros(rows, 1, 64, dtype=dtype, device=device)
    x[0], x[rows - 1] = 1.0, 3.0
    indptr = torch.tensor([0, 2, 2, 3], device=device)
    graph = Graph.from_csr(indptr, torch.tensor([0, rows - 1, rows - 1], device=device), num_src=rows)
    out = neighbor_attention(x, graph, a_dst=torch.zeros(3, 1, dtype=dtype, device=device))
    assert out[:, 0, 63].tolist() == [2, 0, 3]


# Numbers stand in the code: with dynamic=True Dynamo makes a symbol of a float that comes from elsewhere
# (also from a default) and starts anew when an op wants its value, which counts as a second graph.


def _call(run: Callable[..., torch.Tensor]) -> Call:
    return Call(run, _parts, lambda n, device: (*_graph(n, device), _seed(device)))


def _error(
    message: str, change: Callable[[list[Any]], None]
) -> tuple[str, Callable[[Device], tuple[Any, ...]]]:
    def make(device: Device) -> tuple[Any, ...]:
        args: list[Any] = [*_parts(9, device), None, *csr(9, device).values()]
        change(args)
        return tuple(args)

    return f"neighbor_attention: {message}", make


def _put(at: int, value: Callable[[Any], Any]) -> Callable[[list[Any]], None]:
    def change(args: list[Any]) -> None:
        args[at] = value(args[at])

    return change


def _no_terms(args: list[Any]) -> None:
    args[1:4] = [None] * 3


NEIGHBOR_ATTENTION = Op(
    word="attention",
    samples=_samples,
    calls={
        "all terms": _call(
            lambda x, a_src, a_dst, a_edge, graph, seed: neighbor_attention(
                x, graph, a_src, a_dst, a_edge, negative_slope=0.2
            )
        ),
        "dropout": _call(
            lambda x, a_src, a_dst, a_edge, graph, seed: neighbor_attention(
                x, graph, a_src, a_dst, a_edge, negative_slope=0.1, dropout=0.4, seed=seed
            )
        ),
        "scores alone": Call(
            lambda x, scores, graph: neighbor_attention(x, graph, a_edge=scores, negative_slope=1.0),
            lambda n, device, dtype: (_parts(n, device, dtype)[0], _parts(n, device, dtype)[3]),
            _graph,
        ),
    },
    empties=_empties,
    errors=[
        _error("x must have 3 dimensions [rows, heads, channels], got 2", _put(0, lambda x: x[:, 0])),
        _error("x must be float16, bfloat16, float32 or float64, got int64", _put(0, lambda x: x.long())),
        _error("one of a_src, a_dst and a_edge must be given", _no_terms),
        _error("a_src must have shape [9, 2] (sources, heads), got [8, 2]", _put(1, lambda t: t[:8])),
        _error("a_dst must have shape [9, 2] (destinations, heads), got [9]", _put(2, lambda t: t[:, 0])),
        _error("a_edge must have the dtype of x (float32), got float64", _put(3, lambda t: t.double())),
        _error(
            "seed must be int64 with 1 element, got int32 with 1", _put(4, lambda _: torch.tensor(1).int())
        ),
        _error("indptr must have 1 dimension, got 2", _put(5, lambda t: t[None])),
        (
            "neighbor_attention: dropout must be between 0 and 1, got 1.5",
            lambda device: (*_parts(9, device), None, *csr(9, device).values(), 0.2, 1.5),
        ),
        (
            "neighbor_attention: dropout needs a seed",
            lambda device: (*_parts(9, device), None, *csr(9, device).values(), 0.2, 0.5),
        ),
    ],
    huge=_huge,
    one_byte=torch.float16,
    lacks={"zero_dim": "features have three dimensions"},
)

_NO_WRAPPER = {
    "zero_dim": "features have three dimensions",
    "huge": "as the forward op, whose walk of the rows it shares",
    "func_grad": "has no public wrapper, and torch.func does not take torch.library's gradients",
    "gradgradcheck": "third derivatives are not made",
    "compile": "its gradient, a second derivative, is not traced",
}


def _grad_args(n: int, device: Device, dtype: torch.dtype, *parts: torch.Tensor) -> tuple[Any, ...]:
    """out and lse of the terms, and the arguments behind them."""
    rest = (*parts, None, *csr(n, device).values())
    return (*raw.neighbor_attention(*rest)[:2], *rest)


def _attention_grad(
    grad: torch.Tensor, x: torch.Tensor, a_src: torch.Tensor, a_dst: torch.Tensor, a_edge: torch.Tensor,
    graph: dict[str, torch.Tensor],
) -> Any:  # fmt: skip
    terms = (x, a_src, a_dst, a_edge, None, *graph.values())
    out, lse, _ = (t.detach() for t in raw.neighbor_attention(*terms))
    return raw.neighbor_attention_grad(grad, None, out, lse, *terms)


def _attention_grad_samples(device: Device) -> list[tuple[Any, ...]]:
    grad = _x(9, device, torch.float32, 8)
    args = _grad_args(9, device, torch.float32, *_parts(9, device))
    return [(grad, None, *args), (grad, torch.ones_like(args[1]), *args, 0.2, 0.0, 0, 5)]


NEIGHBOR_ATTENTION_GRAD = Op(
    word="attention",
    samples=_attention_grad_samples,
    calls={
        "all terms": Call(
            _attention_grad,
            lambda n, device, dtype: (_x(n, device, dtype, 8), *_parts(n, device, dtype)),
            lambda n, device: (csr(n, device),),
        ),
    },
    empties=lambda device: [
        (
            lambda: _attention_grad(
                _zeros(device, 9, 2, 0), _zeros(device, 9, 2, 0), *_parts(9, device)[1:], csr(9, device)
            ),
            (9, 2, 0),
        ),
    ],
    errors=[
        (
            "neighbor_attention_grad: grad must have shape [9, 2, 3] (destinations, heads, channels), "
            "got [9, 2, 2]",
            lambda device: (
                _x(9, device, torch.float32)[:, :, :2], None,
                *_grad_args(9, device, torch.float32, *_parts(9, device)),
            ),
        ),
        (
            "neighbor_attention_grad: a gradient needs the transposed graph: give t_indptr, t_indices and "
            "t_edge_ids",
            lambda device: (
                _x(9, device, torch.float32), None,
                *_grad_args(9, device, torch.float32, *_parts(9, device))[:-3],
            ),
        ),
    ],
    lacks=_NO_WRAPPER,
)  # fmt: skip
