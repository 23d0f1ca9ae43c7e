"""Graph: who reads whom, as CSR by destination; validated once, with its transpose built once."""

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree

from .aggregate_csr import check_data, check_range, check_vector, fail, index_dtype, max_degree, sort_rows

#: kHubDegree of csrc/aggregate/plan.h. Rows below it need no second pass; results do not depend on it.
_HUB_DEGREE = 1024
_CHECKED, _NO_HUBS, _NO_TRANSPOSED_HUBS = 1, 2, 4


class Graph:
    """A directed graph between `num_src` source and `num_dst` destination nodes (often the same ones).

    Row d of the CSR matrix (indptr, indices) lists the sources of the edges that end in d. Edges keep the
    order in which they were given: `edge_weight` of neighbor_aggregate is in that order, whatever the CSR
    order is (edge_ids, None where they agree). Duplicates count as parallel edges. Index tensors are copied,
    and kept as int32 wherever that holds them.

    Making a Graph validates it on its device and waits for the answer. The transpose, which gradients need,
    is built at the first gradient; under torch.compile, torch.export or CUDA graph capture `prepare()` must
    have been called. Safe to share between threads. A registered pytree: its leaves are its index tensors.
    """

    def __init__(
        self, indptr: torch.Tensor, indices: torch.Tensor, num_src: int | None = None,
        edge_ids: torch.Tensor | None = None,
    ) -> None:  # fmt: skip
        check_vector("indptr", indptr)
        check_vector("indices", indices, indptr.device)
        rows, edges = len(indptr) - 1, len(indices)
        if rows < 0:
            fail("indptr must have at least 1 element, got 0")
        num_src = rows if num_src is None else int(num_src)
        if num_src < 0:
            fail(f"num_src must not be negative, got {num_src}")
        if edge_ids is not None:
            check_vector("edge_ids", edge_ids, indptr.device)
            if len(edge_ids) != edges:
                fail(f"edge_ids must have {edges} elements (the number of edges), got {len(edge_ids)}")
        with torch.inference_mode(False):
            check_data(indptr, indices, num_src, edge_ids)
            offsets, nodes = index_dtype(edges), index_dtype(max(num_src, rows))
            ids = None if edge_ids is None else edge_ids.to(offsets, copy=True).contiguous()
            csr = indptr.to(offsets, copy=True).contiguous(), indices.to(nodes, copy=True).contiguous(), ids
            self._set(csr, None, num_src, _CHECKED)
            if edges < _HUB_DEGREE or max_degree(csr[0]) < _HUB_DEGREE:
                self.promises |= _NO_HUBS

    def _set(
        self, csr: tuple[Any, ...], transpose: tuple[Any, ...] | None, num_src: int, promises: int
    ) -> None:
        #: (indptr [num_dst + 1], indices [num_edges], edge_ids [num_edges] or None)
        self.csr = csr
        self._transpose = transpose
        self._num_src = num_src
        #: What the ops need not look at again (csrc/aggregate/schema.cpp).
        self.promises = promises
        self._derived: dict[Any, Any] = {}  # graphs and weights that gcn_norm made
        self._lock = threading.RLock()

    @classmethod
    def _of(cls, csr: tuple[Any, ...], transpose: Any, num_src: int, promises: int) -> "Graph":
        graph = cls.__new__(cls)
        graph._set(csr, transpose, num_src, promises)
        return graph

    @classmethod
    def from_csr(
        cls, indptr: torch.Tensor, indices: torch.Tensor, num_src: int | None = None,
        edge_ids: torch.Tensor | None = None,
    ) -> "Graph":  # fmt: skip
        """From CSR by destination: indptr [num_dst + 1], indices [num_edges] in [0, num_src).

        num_src: by default as many sources as destinations.
        edge_ids: a permutation; the edge at position e of indices is edge number edge_ids[e] of edge_weight.
        """
        return cls(indptr, indices, num_src, edge_ids)

    @classmethod
    def from_coo(
        cls, edge_index: torch.Tensor | tuple[torch.Tensor, torch.Tensor], num_nodes: int | None = None, *,
        num_src: int | None = None, num_dst: int | None = None,
    ) -> "Graph":  # fmt: skip
        """From edges in any order: edge_index [2, num_edges] or a pair (source, destination).

        num_nodes is for both sides; num_src and num_dst for each. By default the largest id of both + 1.
        """
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
        assert num_src is not None and num_dst is not None
        check_range("source", src, num_src)
        check_range("destination", dst, num_dst)
        indptr, order, in_order = sort_rows(dst, num_dst)
        return cls(indptr, src[order], num_src, None if in_order else order)

    @classmethod
    def from_torch_sparse(cls, matrix: torch.Tensor) -> "Graph":
        """From a sparse_csr or sparse_coo matrix A [num_dst, num_src]; with A's values (A.values(), or
        A._values() where it is not coalesced) as edge_weight, the sum is A @ x."""
        if matrix.layout not in (torch.sparse_csr, torch.sparse_coo) or matrix.dim() != 2:
            fail(
                f"the matrix must be sparse_csr or sparse_coo and 2-D, got {matrix.layout}, {matrix.dim()}-D"
            )
        num_dst, num_src = matrix.shape
        if matrix.layout == torch.sparse_csr:
            return cls(matrix.crow_indices(), matrix.col_indices(), num_src)
        row, column = matrix._indices()
        return cls.from_coo((column, row), num_src=num_src, num_dst=num_dst)

    @classmethod
    def from_scipy(cls, matrix: Any) -> "Graph":
        """From a SciPy sparse matrix A [num_dst, num_src]; with A.data as edge_weight, the sum is A @ x."""
        if matrix.format == "csr":
            return cls(torch.from_numpy(matrix.indptr), torch.from_numpy(matrix.indices), matrix.shape[1])
        matrix = matrix.tocoo()
        ends = torch.from_numpy(matrix.col.copy()), torch.from_numpy(matrix.row.copy())
        return cls.from_coo(ends, num_src=matrix.shape[1], num_dst=matrix.shape[0])

    @classmethod
    def from_pyg(cls, data: Any) -> "Graph":
        """From a PyTorch Geometric Data object, by its edge_index and num_nodes."""
        if getattr(data, "edge_index", None) is None:
            fail(f"{type(data).__name__} has no edge_index")
        return cls.from_coo(data.edge_index, data.num_nodes)

    @property
    def indptr(self) -> torch.Tensor:
        return self.csr[0]

    @property
    def indices(self) -> torch.Tensor:
        return self.csr[1]

    @property
    def edge_ids(self) -> torch.Tensor | None:
        return self.csr[2]

    @property
    def num_src(self) -> int:
        # Where the transpose is there its shape says it, which tracers follow from graph to graph.
        return self._num_src if self._transpose is None else self._transpose[0].shape[0] - 1

    @property
    def num_dst(self) -> int:
        return self.csr[0].shape[0] - 1

    @property
    def num_edges(self) -> int:
        return self.csr[1].shape[0]

    @property
    def device(self) -> torch.device:
        return self.csr[0].device

    def degree(self) -> torch.Tensor:
        """Edges that end in each destination, [num_dst]."""
        return self.indptr[1:] - self.indptr[:-1]

    def destinations(self) -> torch.Tensor:
        """The destination of each edge in CSR order, [num_edges] (as `indices` has the sources)."""
        nodes = torch.arange(self.num_dst, device=self.device, dtype=self.indices.dtype)
        return nodes.repeat_interleave(self.degree().long(), output_size=self.num_edges)

    def transpose(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The same edges by source: (indptr [num_src + 1], indices, edge_ids); built at the first call."""
        if self._transpose is None:
            self._may_build("the transpose", "prepare()")
            with self._lock, torch.inference_mode(False), torch.no_grad():
                if self._transpose is None:
                    self._transpose = self._build_transpose()
        return self._transpose

    def transpose_for(self, *tensors: torch.Tensor | None) -> tuple[torch.Tensor, ...] | None:
        """The transpose where it is built or a gradient in one of the tensors may be asked for."""
        if self._transpose is not None:
            return self._transpose
        wanted = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)
        if not wanted and not torch.compiler.is_compiling():
            wanted = torch._C._functorch.maybe_current_level() is not None  # a transform hides requires_grad
        return self.transpose() if wanted else None

    def _build_transpose(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        indptr, order, _ = sort_rows(self.indices, self._num_src)
        ids = order if self.edge_ids is None else self.edge_ids[order]
        offsets = self.indptr.dtype
        if self.num_edges < _HUB_DEGREE or max_degree(indptr) < _HUB_DEGREE:
            self.promises |= _NO_TRANSPOSED_HUBS
        return indptr.to(offsets), self.destinations()[order], ids.to(offsets)

    def _may_build(self, what: str, how: str) -> None:
        tracing = torch.compiler.is_compiling()
        if tracing or (self.device.type == "cuda" and torch.cuda.is_current_stream_capturing()):
            fail(f"{what} is not built: call graph.{how} before tracing or capture")

    def _lazy(self, key: Any, what: str, build: Callable[[], Any]) -> Any:
        """An entry of `_derived`, built once."""
        if key not in self._derived:
            self._may_build(what, "prepare(gcn_norm=True)")
            with self._lock, torch.inference_mode(False), torch.no_grad():
                if key not in self._derived:
                    self._derived[key] = build()
        return self._derived[key]

    def prepare(self, gcn_norm: bool = False) -> "Graph":
        """Build every lazy part now (with gcn_norm also what GCNConv's default needs); returns the graph."""
        self.transpose()
        if gcn_norm:
            self.gcn_norm()[0].transpose()
        return self

    def add_self_loops(
        self, edge_weight: torch.Tensor | None = None, fill_value: float = 1.0
    ) -> tuple["Graph", torch.Tensor | None]:
        """With one loop on every node; nodes that have one keep it (PyG's add_remaining_self_loops).

        Returns the new graph and, where weights are given, its weights (a new loop weighs fill_value). Its
        edges are in CSR order: loops last in their row.
        """
        from .aggregate_norm import with_self_loops  # that module imports this one

        graph, origin = self._lazy("loops", "the graph with self-loops", lambda: with_self_loops(self))
        if edge_weight is None:
            return graph, None
        return graph, torch.cat([edge_weight, edge_weight.new_full((1,), fill_value)])[origin]

    def gcn_norm(
        self, edge_weight: torch.Tensor | None = None, improved: bool = False, add_self_loops: bool = True,
        dtype: torch.dtype | None = None,
    ) -> tuple["Graph", torch.Tensor]:  # fmt: skip
        """The graph (with self-loops) and the weights D^-1/2 A D^-1/2, D the weighted in-degrees, as in PyG.

        improved: new loops weigh 2. dtype: of the weights (by default the default dtype, or edge_weight's).
        Without edge_weight the answer is kept and costs nothing again; with it, it is differentiable.
        """
        from .aggregate_norm import gcn_norm

        if edge_weight is not None:
            return gcn_norm(self, edge_weight, improved, add_self_loops)
        dtype = dtype or torch.get_default_dtype()
        wide = torch.float64 if dtype == torch.float64 else torch.float32

        def build() -> tuple[Graph, torch.Tensor]:
            ones = torch.ones(self.num_edges, dtype=wide, device=self.device)
            graph, weight = gcn_norm(self, ones, improved, add_self_loops)
            return graph, weight.to(dtype)

        return self._lazy((improved, add_self_loops, dtype), "the GCN normalisation", build)

    def _tensors(self) -> list[torch.Tensor]:
        return [t for t in (*self.csr, *(self._transpose or ())) if t is not None]

    def to(self, device: torch.device | str, non_blocking: bool = False) -> "Graph":
        """The graph on another device, with the parts that are built; itself where it is there already."""

        def move(t: torch.Tensor | None) -> torch.Tensor | None:
            return None if t is None else t.to(device, non_blocking=non_blocking)

        if move(self.indptr) is self.indptr:
            return self
        transpose = None if self._transpose is None else tuple(map(move, self._transpose))
        graph = Graph._of(tuple(map(move, self.csr)), transpose, self._num_src, self.promises)
        graph._derived = {
            key: (derived.to(device, non_blocking), move(t)) for key, (derived, t) in self._derived.items()
        }
        return graph

    def __getstate__(self) -> tuple[Any, ...]:
        return self.csr, self._transpose, self._num_src, self.promises

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self._set(*state)

    def __repr__(self) -> str:
        degrees = ""
        if self.num_dst > 0 and self.indptr.device.type != "meta":
            degrees = f"degree mean {self.num_edges / self.num_dst:.1f} max {max_degree(self.indptr)}, "
        size = sum(t.nbytes for t in self._tensors())
        built = "built" if self._transpose is not None else "not built"
        index = str(self.indices.dtype).removeprefix("torch.")
        return (
            f"Graph(num_src={self.num_src}, num_dst={self.num_dst}, num_edges={self.num_edges}, {degrees}"
            f"{index}, {size / 2**20:.3g} MiB, transpose {built}, device='{self.device}')"
        )


def _flatten(graph: Graph) -> tuple[list[Any], tuple[Any, ...]]:
    """Leaves: indptr, indices, edge_ids if any, the transpose if built, which then says how many sources."""
    transposed = graph._transpose is not None
    return graph._tensors(), (graph.edge_ids is not None, None if transposed else graph._num_src)


def _flatten_with_keys(graph: Graph) -> tuple[list[tuple[Any, Any]], tuple[Any, ...]]:
    leaves, context = _flatten(graph)
    names = ["indptr", "indices", *["edge_ids"][: context[0]], "t_indptr", "t_indices", "t_edge_ids"]
    return [(_pytree.GetAttrKey(n), leaf) for n, leaf in zip(names, leaves, strict=False)], context


def _unflatten(leaves: Any, context: Any) -> Graph:
    """Leaves may be anything (tree_map): nothing is looked at, and so nothing is promised to the ops."""
    leaves, (has_ids, num_src) = list(leaves), context
    csr = (*leaves[:2], leaves[2] if has_ids else None)
    transpose = tuple(leaves[2 + has_ids :])
    return Graph._of(csr, transpose or None, -1 if num_src is None else num_src, 0)


_pytree.register_pytree_node(
    Graph,
    _flatten,
    _unflatten,
    serialized_type_name="torch_gpuprims.Graph",
    flatten_with_keys_fn=_flatten_with_keys,
    to_dumpable_context=list,
    from_dumpable_context=tuple,
)
