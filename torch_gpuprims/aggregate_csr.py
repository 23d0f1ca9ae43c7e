"""What Graph is made with: checks that name the first bad entry, and rows sorted into CSR."""

from typing import Any, NoReturn

import torch

from .sort import _argsort


def fail(words: str) -> NoReturn:
    raise ValueError(f"Graph: {words}")


def index_dtype(count: int) -> torch.dtype:
    """The narrowest index type that counts so far."""
    return torch.int32 if count < 2**31 else torch.int64


def check_vector(name: str, t: Any, device: torch.device | None = None) -> None:
    if not isinstance(t, torch.Tensor):
        fail(f"{name} must be a tensor, got {type(t).__name__}")
    if t.dim() != 1:
        fail(f"{name} must have 1 dimension, got {t.dim()}")
    if t.dtype not in (torch.int32, torch.int64):
        fail(f"{name} must be int32 or int64, got {str(t.dtype).removeprefix('torch.')}")
    if device is not None and t.device != device:
        fail(f"{name} must be on {device}, got {t.device}")


def _outside(ids: torch.Tensor, count: int) -> torch.Tensor:
    last = min(count - 1, torch.iinfo(ids.dtype).max)
    return (ids < 0) | (ids > last)


def _first(mask: torch.Tensor) -> int:
    return int(mask.nonzero()[0])


def check_range(name: str, ids: torch.Tensor, count: int) -> None:
    mask = _outside(ids, count)
    if mask.any():
        at = _first(mask)
        fail(f"{name} must be in [0, {count}), but {name}[{at}] = {int(ids[at])}")


def check_data(
    indptr: torch.Tensor, indices: torch.Tensor, num_src: int, edge_ids: torch.Tensor | None
) -> None:
    """The values, with one wait for the device where all is well."""
    edges = len(indices)
    falls, outside = indptr[1:] < indptr[:-1], _outside(indices, num_src)
    facts = [indptr[0] != 0, falls.any(), indptr[-1] != edges, outside.any()]
    if edge_ids is not None:
        every = torch.arange(edges, device=edge_ids.device, dtype=edge_ids.dtype)
        facts += [_outside(edge_ids, edges).any(), (edge_ids.sort().values != every).any()]
    bad = torch.stack(facts).tolist()
    if bad[0]:
        fail(f"indptr must start at 0, got {int(indptr[0])}")
    if bad[1]:
        at = _first(falls) + 1
        fail(f"indptr must not decrease, but indptr[{at}] = {int(indptr[at])} follows {int(indptr[at - 1])}")
    if bad[2]:
        fail(f"indptr must end at the number of edges ({edges}), got {int(indptr[-1])}")
    if bad[3]:
        check_range("indices", indices, num_src)
    if edge_ids is not None and bad[4]:
        check_range("edge_ids", edge_ids, edges)
    if edge_ids is not None and bad[5]:
        order = edge_ids.sort()
        again = int(order.values[1:][order.values[1:] == order.values[:-1]][0])
        fail(f"edge_ids must be a permutation, but {again} repeats")


def sort_rows(rows: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor, bool]:
    """Stable order of the edges by row: (indptr [count + 1], order [edges], whether they were in order).

    Offsets come from a search in the sorted rows: no atomics.
    """
    rows = rows.to(index_dtype(count))
    in_order = bool((rows[1:] >= rows[:-1]).all())
    if in_order:
        order = torch.arange(len(rows), device=rows.device, dtype=index_dtype(len(rows)))
    else:
        order = stable_order(rows, count)
        rows = rows.index_select(0, order)
    bounds = torch.arange(count + 1, device=rows.device, dtype=rows.dtype)
    return torch.searchsorted(rows, bounds), order, in_order


def stable_order(keys: torch.Tensor, count: int) -> torch.Tensor:
    """argsort of keys in [0, count), looking at no more bits than they have."""
    bits = 64 if len(keys) >= 2**31 else 32
    return _argsort(keys, 0, False, bits, 0, max((count - 1).bit_length(), 1))


def max_degree(indptr: torch.Tensor) -> int:
    return int((indptr[1:] - indptr[:-1]).max()) if len(indptr) > 1 else 0
