"""The graph of an edge_index, for layers that take either."""

import weakref

import torch

from ..aggregate_csr import fail
from ..graph import Graph

#: Graphs of edge_index tensors by id: (the tensor while it lives, its version, num_nodes, the graph).
_converted: dict[int, tuple[weakref.ref[torch.Tensor], int, int, Graph]] = {}


def as_graph(edges: Graph | torch.Tensor, num_nodes: int) -> Graph:
    """The graph itself, or that of an edge_index [2, num_edges], kept while the tensor lives unchanged."""
    if isinstance(edges, Graph):
        return edges
    if torch.compiler.is_compiling():
        fail("an edge_index cannot be converted while tracing: make a Graph of it first")
    if edges.is_inference():  # has no version that would tell of changes
        return Graph.from_coo(edges, num_nodes)
    key, version = id(edges), edges._version
    found = _converted.get(key)
    if found is None or found[0]() is not edges or found[1:3] != (version, num_nodes):
        reference = weakref.ref(edges, lambda _: _converted.pop(key, None))
        found = _converted[key] = reference, version, num_nodes, Graph.from_coo(edges, num_nodes)
    return found[3]
