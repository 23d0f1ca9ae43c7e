"""Graph: who reads whom, as CSR by destination; validated once, with its transpose built once."""

import copy
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch._subclasses.fake_tensor import FakeTensor

from . import graph_edges
from ._fake_checks import dtype_name
from .aggregate_csr import check_data, check_vector, fail, index_dtype, max_degree, sort_rows
from .aggregate_plan import HUB_DEGREE as _HUB_DEGREE
from .aggregate_plan import LONG_DEGREE as _LONG_DEGREE
from .aggregate_plan import Walk, walk_of
from .graph_build import GraphBuilders, _size

T = TypeVar("T")
#: Bits of promises. Those about rows of the transpose are twice those about rows.
_CHECKED, _NO_HUBS, _NO_LONG = 1, 2, 8


def _about_rows(indptr: torch.Tensor) -> int:
    longest = max_degree(indptr)
    return _NO_HUBS * (longest < _HUB_DEGREE) | _NO_LONG * (longest < _LONG_DEGREE)


class Graph(GraphBuilders):
    """A directed graph between `num_src` source and `num_dst` destination nodes (often the same ones).

    Row d of the CSR matrix (indptr, indices) lists the sources of the edges that end in d. Edges keep the
    order in which they were given: `edge_weight` of neighbor_aggregate is in that order, whatever the CSR
    order is (edge_ids, None where they agree). Duplicates count as parallel edges. Index tensors are copied,
    and kept as int32 wherever that holds them.

    Making a Graph validates it on its device and waits for the answer. The transpose, which gradients need,
    is built at the first gradient; under torch.compile, torch.export or CUDA graph capture `prepare()` must
    have been called. Safe to share between threads. A registered pytree: its leaves are its index tensors.
    torch.save keeps what is built; torch.load needs weights_only=False, as what it reads is not validated
    again.
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
        given = _size("num_src", num_src)
        num_src = rows if given is None else given
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
            self.promises |= _about_rows(csr[0])

    def _set(
        self, csr: tuple[Any, ...], transpose: tuple[Any, ...] | None, num_src: int, promises: int
    ) -> None:
        #: (indptr [num_dst + 1], indices [num_edges], edge_ids [num_edges] or None)
        self.csr = csr
        self._transpose = transpose
        self._num_src = num_src
        self._walk: Walk | None = None  # csr and its plan, in schedule order where there is one
        self._t_walk: Walk | None = None
        self._order: torch.Tensor | None = None  # [num_dst] int64: the schedule
        #: What reorder decided, and why.
        self.schedule = "rows as given"
        #: What the ops need not look at again (csrc/aggregate/schema.cpp).
        self.promises = promises
        self._derived: dict[Any, Any] = {}  # graphs and weights that gcn_norm made
        self._lock = threading.RLock()

    @classmethod
    def _of(cls, csr: tuple[Any, ...], transpose: Any, num_src: int, promises: int) -> "Graph":
        graph = cls.__new__(cls)
        graph._set(csr, transpose, num_src, promises)
        return graph

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
                    self._transpose = self._there(self._build_transpose())
        return self._transpose

    def transpose_for(self, *tensors: torch.Tensor | None) -> Walk | None:
        """What kernels walk of the transpose, where it is built or a gradient in one of the tensors may be
        asked for."""
        if self._transpose is None:
            wanted = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)
            if not wanted and not torch.compiler.is_compiling():
                wanted = torch._C._functorch.maybe_current_level() is not None  # it hides requires_grad
            if not wanted:
                return None
        return self._t_walk or self._make_t_walk()

    def walk(self) -> Walk:
        """What kernels walk: (indptr, indices, edge_ids, plan), in schedule order where rows have one.

        While a tracer or a capture looks on, what is not built stays unbuilt: each call then plans itself.
        """
        if self._walk is not None:
            return self._walk
        if self._order is None and self._building_is_seen():
            return (*self.csr, None)
        self._may_build("the schedule", "prepare()")
        with self._lock, torch.inference_mode(False), torch.no_grad():
            if self._walk is None:
                self._walk = self._there(walk_of(self.csr, self._order))
        return self._walk

    def _make_t_walk(self) -> Walk:
        transpose = self.transpose()
        if self._order is None and self._building_is_seen():
            return (*transpose, None)
        self._may_build("the schedule of the transpose", "prepare()")
        with self._lock, torch.inference_mode(False), torch.no_grad():
            if self._t_walk is None:
                # A node's sources and destinations lie in the same community.
                same = self._order is not None and len(self._order) == self.num_src
                self._t_walk = self._there(walk_of(transpose, self._order if same else None))
        return self._t_walk

    def _build_transpose(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        indptr, order, _ = sort_rows(self.indices, self._num_src)
        ids = order if self.edge_ids is None else self.edge_ids[order]
        offsets = self.indptr.dtype
        self.promises |= 2 * _about_rows(indptr)
        return indptr.to(offsets), self.destinations()[order], ids.to(offsets)

    def _building_is_seen(self) -> bool:
        """By a tracer, which would trace it, or by the capture of a CUDA graph."""
        if torch.compiler.is_compiling() or isinstance(self.indptr, FakeTensor):
            return True
        return self.device.type == "cuda" and torch.cuda.is_current_stream_capturing()

    def _may_build(self, what: str, how: str) -> None:
        if self._building_is_seen():
            fail(f"{what} is not built: call graph.{how} before tracing or capture")

    def _there(self, part: T) -> T:
        """A part that was just built, once the device has made it: every stream and thread may use it from
        now on, and nothing orders them after the stream that built it."""
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()
        return part

    def _lazy(self, key: Any, what: str, build: Callable[[], Any]) -> Any:
        """An entry of `_derived`, built once."""
        if key not in self._derived:
            self._may_build(what, "prepare(gcn_norm=True)")
            with self._lock, torch.inference_mode(False), torch.no_grad():
                if key not in self._derived:
                    self._derived[key] = self._there(build())
        return self._derived[key]

    def prepare(self, gcn_norm: bool = False) -> "Graph":
        """Build every lazy part now (with gcn_norm also what GCNConv's default needs); returns the graph."""
        self.walk()
        self._make_t_walk()
        if gcn_norm:
            self.gcn_norm()[0].prepare()
            self.gcn_scale()[0].prepare()
        return self

    def reorder(
        self, method: str = "auto", *, order: torch.Tensor | None = None, features: int = 64
    ) -> "Graph":
        """The same graph with its rows walked in an order that lets neighbours find each other in the caches.

        Only the order of work changes: x, results, weights and gradients stay where they are, and every bit
        of every result is the same. indptr, indices and edge ids are copied in the new order (and once more
        for the transpose, at the first gradient).

        Args:
            method: "community" (label propagation on up to 32 neighbours of each node, 8 rounds), "bfs"
                (regions grown from evenly spaced nodes; for meshes and roads), "degree" (falling), "none", or
                "auto": community, or bfs where degrees are low; kept only if a sample of windows of 4,096
                rows reads at most 0.8 times as many distinct neighbours as in the given order and, on CUDA,
                one timed sum of `features` float32 columns is faster.
            order: [num_dst], a permutation; row order[i] is walked as number i. Then method is not looked at.

        Returns a new Graph that shares the index tensors; `schedule` says what was decided and why. This call
        waits for the device; with "auto" alone it measures time, so two runs may decide differently, and the
        results are the same either way.

        Errors: ValueError about the method, the order, or a bipartite graph for community and bfs.
        """
        from .graph_reorder import reorder

        return reorder(self, method, order, features)

    def _check_weight(self, edge_weight: torch.Tensor) -> None:
        """What the builders below index by edge: a wrong length must not become a wrong edge."""
        shape = list(edge_weight.shape)
        if shape != [self.num_edges]:
            fail(f"edge_weight must have shape [{self.num_edges}] (the number of edges), got {shape}")
        if edge_weight.device != self.device:
            fail(f"edge_weight must be on {self.device}, got {edge_weight.device}")

    def coalesce(self, edge_weight: torch.Tensor | None = None) -> tuple["Graph", torch.Tensor | None]:
        """Without duplicate edges, sources in rising order within a row; and, where weights are given, the
        sums of the weights of each edge's duplicates, in the order of the new graph (differentiable)."""
        if edge_weight is not None:
            self._check_weight(edge_weight)
        return graph_edges.coalesce(self, edge_weight)

    def remove_self_loops(
        self, edge_weight: torch.Tensor | None = None
    ) -> tuple["Graph", torch.Tensor | None]:
        """Without edges from a node to itself; and the weights that remain, in the order of the new graph."""
        if edge_weight is not None:
            self._check_weight(edge_weight)
        return graph_edges.remove_self_loops(self, edge_weight)

    def _with_order(self, order: torch.Tensor | None, schedule: str) -> "Graph":
        graph = Graph._of(self.csr, self._transpose, self._num_src, self.promises)
        graph._order, graph.schedule = order, schedule
        return graph

    def add_self_loops(
        self, edge_weight: torch.Tensor | None = None, fill_value: float = 1.0
    ) -> tuple["Graph", torch.Tensor | None]:
        """With one loop on every node; nodes that have one keep it (PyG's add_remaining_self_loops).

        Returns the new graph and, where weights are given, its weights (a new loop weighs fill_value). Its
        edges are in CSR order: loops last in their row.
        """
        from .aggregate_norm import with_self_loops  # that module imports this one

        if edge_weight is not None:
            self._check_weight(edge_weight)
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
            self._check_weight(edge_weight)
            if not edge_weight.is_floating_point():
                fail(f"edge_weight must be of a floating dtype, got {dtype_name(edge_weight.dtype)}")
            return gcn_norm(self, edge_weight, improved, add_self_loops)
        dtype = dtype or torch.get_default_dtype()
        wide = torch.float64 if dtype == torch.float64 else torch.float32

        def build() -> tuple[Graph, torch.Tensor]:
            ones = torch.ones(self.num_edges, dtype=wide, device=self.device)
            graph, weight = gcn_norm(self, ones, improved, add_self_loops)
            return graph, weight.to(dtype)

        return self._lazy((improved, add_self_loops, dtype), "the GCN normalisation", build)

    def gcn_scale(
        self, add_self_loops: bool = True, dtype: torch.dtype | None = None
    ) -> tuple["Graph", torch.Tensor]:
        """gcn_norm without edge weights, in two factors: the graph (with self-loops) and D^-1/2, [num_dst].

        D^-1/2 A D^-1/2 x is scale * (A (scale * x)), in which the sum has no weights to read. Kept.
        """
        dtype = dtype or torch.get_default_dtype()
        wide = torch.float64 if dtype == torch.float64 else torch.float32

        def build() -> tuple[Graph, torch.Tensor]:
            graph = self.add_self_loops()[0] if add_self_loops else self
            scale = graph.degree().to(wide).pow(-0.5)
            return graph, scale.masked_fill(scale == torch.inf, 0).to(dtype)

        return self._lazy(("scale", add_self_loops, dtype), "the GCN normalisation", build)

    def _tensors(self) -> list[torch.Tensor]:
        return [t for t in (*self.csr, *(self._transpose or ())) if t is not None]

    def _mapped(self, move: Callable[[torch.Tensor], torch.Tensor]) -> "Graph":
        """With `move` done to every tensor; what kernels walk is built anew where there is a schedule."""

        def each(tensors: tuple[Any, ...] | None) -> Any:
            return None if tensors is None else tuple(None if t is None else move(t) for t in tensors)

        with torch.inference_mode(False):  # as in __init__: gradients go through these tensors later
            graph = Graph._of(each(self.csr), each(self._transpose), self._num_src, self.promises)
            graph._order = None if self._order is None else move(self._order)
            graph.schedule = self.schedule
            for key, (derived, rest) in list(self._derived.items()):
                graph._derived[key] = derived._mapped(move), None if rest is None else move(rest)
        return graph

    def __deepcopy__(self, memo: dict[int, Any]) -> "Graph":
        return self._mapped(lambda t: copy.deepcopy(t, memo))

    def to(self, device: torch.device | str, non_blocking: bool = False) -> "Graph":
        """The graph on another device, with the parts that are built; itself where it is there already."""
        try:
            device = torch.device(device)
        except TypeError:
            fail(f"device must be a torch.device or its name, got {device!r}")
        if self.indptr.to(device, non_blocking=non_blocking) is self.indptr:
            return self
        return self._mapped(lambda t: t.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> "Graph":
        """A copy in page-locked memory, from which to(device, non_blocking=True) does not wait."""
        return self._mapped(torch.Tensor.pin_memory)

    def __getstate__(self) -> tuple[Any, ...]:
        return self.csr, self._transpose, self._num_src, self.promises, self._order, self.schedule

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        *tensors, num_src, promises, order, schedule = state
        with torch.inference_mode(False):  # what is loaded under inference_mode could not train
            csr, transpose, (order,) = (
                part and tuple(t.clone() if t is not None and t.is_inference() else t for t in part)
                for part in (*tensors, (order,))
            )
        self._set(csr, transpose, num_src, promises)
        self._order, self.schedule = order, schedule

    def __repr__(self) -> str:
        degrees = ""
        if self.num_dst > 0 and self.indptr.device.type != "meta":
            degrees = f"degree mean {self.num_edges / self.num_dst:.1f} max {max_degree(self.indptr)}, "
        every = [*self._tensors(), *(self._walk or ()), *(self._t_walk or ()), self._order]
        size = sum(t.nbytes for t in {id(t): t for t in every if t is not None}.values())
        built = "built" if self._transpose is not None else "not built"
        index = str(self.indices.dtype).removeprefix("torch.")
        return (
            f"Graph(num_src={self.num_src}, num_dst={self.num_dst}, num_edges={self.num_edges}, {degrees}"
            f"{index}, {size / 2**20:.3g} MiB, transpose {built}, {self.schedule}, device='{self.device}')"
        )


from . import graph_tree as graph_tree  # noqa: E402  registers the pytree
