"""Graph from other forms: COO, sparse matrices, PyTorch Geometric, DGL; duplicates and self-loops."""

from typing import TYPE_CHECKING, Any

import torch

from .aggregate_csr import check_range, check_vector, fail, sort_rows, stable_order

if TYPE_CHECKING:
    from .graph import Graph

_DUPLICATES = ("keep", "remove", "error")
_LOOPS = ("keep", "remove", "add", "error")


def _one_of(name: str, value: str, words: tuple[str, ...]) -> None:
    if value not in words:
        fail(f"{name} must be one of {', '.join(words)}, got {value!r}")


def from_coo(
    cls: type["Graph"], edge_index: Any, num_nodes: int | None, num_src: int | None, num_dst: int | None,
    duplicates: str = "keep", self_loops: str = "keep",
) -> "Graph":  # fmt: skip
    _one_of("duplicates", duplicates, _DUPLICATES)
    _one_of("self_loops", self_loops, _LOOPS)
    if isinstance(edge_index, torch.Tensor):
        if edge_index.dim() != 2 or edge_index.shape[0] != 2:
            fail(f"edge_index must have shape [2, num_edges], got {list(edge_index.shape)}")
    elif len(edge_index) != 2:
        fail(f"edge_index must be a pair (source, destination), got {len(edge_index)} tensors")
    src, dst = edge_index
    check_vector("source", src, src.device)
    check_vector("destination", dst, src.device)
    if len(src) != len(dst):
        fail(f"source and destination must have the same length, got {len(src)} and {len(dst)}")
    if num_nodes is None and None in (num_src, num_dst):
        num_nodes = int(torch.stack([src.max(), dst.max()]).max()) + 1 if len(src) else 0
    num_src = num_nodes if num_src is None else num_src
    num_dst = num_nodes if num_dst is None else num_dst
    assert num_src is not None
    assert num_dst is not None
    check_range("source", src, num_src)
    check_range("destination", dst, num_dst)
    indptr, order, in_order = sort_rows(dst, num_dst)
    graph = cls(indptr, src.index_select(0, order), num_src, None if in_order else order)
    if self_loops == "error" or self_loops == "remove":
        graph = _without_loops(graph, self_loops)
    if duplicates != "keep":
        graph = _without_duplicates(graph, duplicates)
    return graph.add_self_loops()[0] if self_loops == "add" else graph


def _selected(graph: "Graph", keep: torch.Tensor) -> "Graph":
    """The edges of a mask in CSR order; they are numbered in that order."""
    kept = torch.zeros(graph.num_edges + 1, dtype=torch.int64, device=graph.device)
    torch.cumsum(keep, 0, out=kept[1:])
    return type(graph)(kept[graph.indptr.long()], graph.indices[keep], graph.num_src)


def _without_loops(graph: "Graph", self_loops: str) -> "Graph":
    loop = graph.indices == graph.destinations()
    if not loop.any():
        return graph
    if self_loops == "error":
        node = int(graph.indices[loop][0])
        fail(f"there are self-loops, the first one at node {node}")
    return _selected(graph, ~loop)


def _sorted_edges(graph: "Graph") -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(positions of the edges by destination, then source; their sources; whether each repeats the last)."""
    by_source = stable_order(graph.indices, max(graph.num_src, 1))
    row = graph.destinations()
    by_row = stable_order(row.index_select(0, by_source), max(graph.num_dst, 1))
    at = by_source.index_select(0, by_row)
    row, source = row.index_select(0, at), graph.indices.index_select(0, at)
    repeats = torch.zeros(len(at), dtype=torch.bool, device=graph.device)
    repeats[1:] = (row[1:] == row[:-1]) & (source[1:] == source[:-1])
    return at, source, repeats


def _without_duplicates(graph: "Graph", duplicates: str) -> "Graph":
    """The first of each edge, in the order in which the graph has them."""
    at, source, repeats = _sorted_edges(graph)
    if not repeats.any():
        return graph
    if duplicates == "error":
        which = int(at[repeats][0])
        row = int(graph.destinations()[which])
        fail(f"there are duplicate edges, the first one from {int(graph.indices[which])} to {row}")
    keep = torch.ones(graph.num_edges, dtype=torch.bool, device=graph.device)
    keep[at[repeats].long()] = False
    return _selected(graph, keep)


def coalesce(graph: "Graph", edge_weight: torch.Tensor | None) -> tuple["Graph", torch.Tensor | None]:
    from .aggregate import neighbor_aggregate  # that module imports Graph

    with torch.no_grad():
        at, source, repeats = _sorted_edges(graph)
        first = ~repeats
        count = torch.zeros(graph.num_edges + 1, dtype=torch.int64, device=graph.device)
        torch.cumsum(first, 0, out=count[1:])
        merged = type(graph)(count[graph.indptr.long()], source[first], graph.num_src)
        if edge_weight is None:
            return merged, None
        # A row an edge of the merged graph, which reads the weights of its duplicates.
        ids = at if graph.edge_ids is None else graph.edge_ids.index_select(0, at)
        bounds = torch.cat([first.nonzero().flatten(), count.new_tensor([graph.num_edges])])
        groups = type(graph)(bounds, ids, graph.num_edges)
    return merged, neighbor_aggregate(edge_weight[:, None], groups)[:, 0]


def remove_self_loops(
    graph: "Graph", edge_weight: torch.Tensor | None
) -> tuple["Graph", torch.Tensor | None]:
    keep = graph.indices != graph.destinations()
    ids = torch.arange(graph.num_edges, device=graph.device) if graph.edge_ids is None else graph.edge_ids
    rest = _selected(graph, keep)
    return rest, None if edge_weight is None else edge_weight[ids[keep].long()]


def from_torch_sparse(cls: type["Graph"], matrix: torch.Tensor) -> "Graph":
    if matrix.layout not in (torch.sparse_csr, torch.sparse_coo) or matrix.dim() != 2:
        fail(f"the matrix must be sparse_csr or sparse_coo and 2-D, got {matrix.layout}, {matrix.dim()}-D")
    num_dst, num_src = matrix.shape
    if matrix.layout == torch.sparse_csr:
        return cls(matrix.crow_indices(), matrix.col_indices(), num_src)
    row, column = matrix._indices()
    return from_coo(cls, (column, row), None, num_src, num_dst)


def from_scipy(cls: type["Graph"], matrix: Any) -> "Graph":
    if matrix.format == "csr":
        return cls(torch.from_numpy(matrix.indptr), torch.from_numpy(matrix.indices), matrix.shape[1])
    matrix = matrix.tocoo()
    ends = torch.from_numpy(matrix.col.copy()), torch.from_numpy(matrix.row.copy())
    return from_coo(cls, ends, None, matrix.shape[1], matrix.shape[0])


def from_pyg(cls: type["Graph"], data: Any, edge_type: Any, num_nodes: int | None) -> "Graph":
    if isinstance(data, torch.Tensor):  # EdgeIndex, a tensor that knows its size
        sizes = data.sparse_size() if hasattr(data, "sparse_size") else (None, None)
        plain = data.as_tensor() if hasattr(data, "as_tensor") else data
        num_src, num_dst = (num_nodes if size is None else size for size in sizes)
        return from_coo(cls, plain, num_nodes, num_src, num_dst)
    if edge_type is not None:
        source, _, destination = edge_type
        store = data[edge_type]
        return _from_store(cls, store, data[source].num_nodes, data[destination].num_nodes)
    if hasattr(data, "edge_types"):
        fail(f"a HeteroData needs edge_type, one of {', '.join(map(repr, data.edge_types))}")
    return _from_store(cls, data, num_nodes or data_nodes(data), num_nodes or data_nodes(data))


def data_nodes(data: Any) -> int | None:
    return getattr(data, "num_nodes", None)


def _from_store(cls: type["Graph"], store: Any, num_src: int | None, num_dst: int | None) -> "Graph":
    edge_index = getattr(store, "edge_index", None)
    if edge_index is not None:
        if hasattr(edge_index, "as_tensor"):
            edge_index = edge_index.as_tensor()
        return from_coo(cls, edge_index, None, num_src, num_dst)
    adj_t = getattr(store, "adj_t", None)
    if adj_t is None:
        fail(f"{type(store).__name__} has no edge_index")
    if isinstance(adj_t, torch.Tensor):
        return from_torch_sparse(cls, adj_t)
    indptr, indices, _ = adj_t.csr()  # torch_sparse.SparseTensor
    return cls(indptr, indices, adj_t.size(1))


def from_dgl(cls: type["Graph"], graph: Any, etype: Any) -> "Graph":
    named = () if etype is None else (etype,)
    if etype is None:
        src, dst = graph.edges(order="eid")
        return from_coo(cls, (src, dst), None, graph.num_src_nodes(), graph.num_dst_nodes())
    src, dst = graph.edges(order="eid", etype=etype)
    source, _, destination = graph.to_canonical_etype(*named)
    return from_coo(cls, (src, dst), None, graph.num_src_nodes(source), graph.num_dst_nodes(destination))
