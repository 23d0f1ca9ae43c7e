"""Graph from other forms: COO, sparse matrices, PyTorch Geometric, DGL; duplicates and self-loops."""

import operator
from typing import TYPE_CHECKING, Any

import torch

from .aggregate_csr import check_range, check_vector, fail, sort_rows
from .graph_edges import without_duplicates, without_loops

if TYPE_CHECKING:
    from .graph import Graph

_DUPLICATES = ("keep", "remove", "error")
_LOOPS = ("keep", "remove", "add", "error")


def _one_of(name: str, value: str, words: tuple[str, ...]) -> None:
    if value not in words:
        fail(f"{name} must be one of {', '.join(words)}, got {value!r}")


def _size(name: str, value: Any) -> int | None:
    try:
        size = None if value is None else operator.index(value)
    except TypeError:
        fail(f"{name} must be an integer, got {value!r}")
    if size is not None and size < 0:
        fail(f"{name} must not be negative, got {size}")
    return size


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
    if getattr(edge_index, "layout", torch.strided) is not torch.strided:
        fail("edge_index must be a dense tensor (from_torch_sparse takes matrices)")
    src, dst = edge_index
    check_vector("source", src)
    check_vector("destination", dst, src.device)
    num_nodes, num_src = _size("num_nodes", num_nodes), _size("num_src", num_src)
    num_dst = _size("num_dst", num_dst)
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
        graph = without_loops(graph, self_loops)
    if duplicates != "keep":
        graph = without_duplicates(graph, duplicates)
    return graph.add_self_loops()[0] if self_loops == "add" else graph


def from_torch_sparse(cls: type["Graph"], matrix: torch.Tensor) -> "Graph":
    if not isinstance(matrix, torch.Tensor):
        fail(f"the matrix must be a tensor, got {type(matrix).__name__}")
    if matrix.layout not in (torch.sparse_csr, torch.sparse_coo) or matrix.dim() != 2:
        fail(f"the matrix must be sparse_csr or sparse_coo and 2-D, got {matrix.layout}, {matrix.dim()}-D")
    num_dst, num_src = matrix.shape
    if matrix.layout == torch.sparse_csr:
        return cls(matrix.crow_indices(), matrix.col_indices(), num_src)
    row, column = matrix._indices()
    return from_coo(cls, (column, row), None, num_src, num_dst)


def from_scipy(cls: type["Graph"], matrix: Any) -> "Graph":
    if not hasattr(matrix, "tocoo"):
        fail(f"the matrix must be a SciPy sparse matrix, got {type(matrix).__name__}")
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
        if edge_type not in (known := tuple(getattr(data, "edge_types", ()))):
            fail(f"edge_type must be one of {', '.join(map(repr, known))}, got {edge_type!r}")
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


class GraphBuilders:
    """The constructors that Graph inherits."""

    @classmethod
    def from_csr(
        cls: Any, indptr: torch.Tensor, indices: torch.Tensor, num_src: int | None = None,
        edge_ids: torch.Tensor | None = None,
    ) -> "Graph":  # fmt: skip
        """From CSR by destination: indptr [num_dst + 1], indices [num_edges] in [0, num_src).

        num_src: by default as many sources as destinations.
        edge_ids: a permutation; the edge at position e of indices is edge number edge_ids[e] of edge_weight.
        """
        return cls(indptr, indices, num_src, edge_ids)

    @classmethod
    def from_coo(
        cls: Any, edge_index: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
        num_nodes: int | None = None, *, num_src: int | None = None, num_dst: int | None = None,
        duplicates: str = "keep", self_loops: str = "keep",
    ) -> "Graph":  # fmt: skip
        """From edges in any order: edge_index [2, num_edges] or a pair (source, destination).

        num_nodes is for both sides; num_src and num_dst for each. By default the largest id of both + 1.

        duplicates: "keep" (parallel edges), "remove" (the first of each stays) or "error".
        self_loops: "keep", "remove", "add" (where a node has none) or "error".
        Where edges were removed or added, edge_weight is in the order of `indices` (see coalesce and
        add_self_loops, which bring weights along).
        """
        return from_coo(cls, edge_index, num_nodes, num_src, num_dst, duplicates, self_loops)

    @classmethod
    def from_torch_sparse(cls: Any, matrix: torch.Tensor) -> "Graph":
        """From a sparse_csr or sparse_coo matrix A [num_dst, num_src]; with A's values (A.values(), or
        A._values() where it is not coalesced) as edge_weight, the sum is A @ x."""
        return from_torch_sparse(cls, matrix)

    @classmethod
    def from_scipy(cls: Any, matrix: Any) -> "Graph":
        """From a SciPy sparse matrix A [num_dst, num_src]; with A.data as edge_weight, the sum is A @ x."""
        return from_scipy(cls, matrix)

    @classmethod
    def from_pyg(cls: Any, data: Any, edge_type: Any = None, num_nodes: int | None = None) -> "Graph":
        """From PyTorch Geometric's Data (edge_index or adj_t), HeteroData (with edge_type, a triple of names)
        or EdgeIndex (sorted by column: without a sort; num_nodes where its size is not known)."""
        return from_pyg(cls, data, edge_type, num_nodes)

    @classmethod
    def from_dgl(cls: Any, graph: Any, etype: Any = None) -> "Graph":
        """From a DGL graph or block (of one edge type, or with etype): its edges(), num_src_nodes() and
        num_dst_nodes() in the order of its edge ids."""
        return from_dgl(cls, graph, etype)
