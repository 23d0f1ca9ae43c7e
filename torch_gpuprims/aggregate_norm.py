"""Self-loops and GCN normalisation, for Graph's methods of those names."""

import torch

from .aggregate import neighbor_aggregate
from .aggregate_csr import fail
from .graph import Graph


def with_self_loops(graph: Graph) -> tuple[Graph, torch.Tensor]:
    """The graph with one loop a node, in CSR order, and where its weights lie in [old weights.., fill]."""
    nodes = graph.num_dst
    if graph.num_src != nodes:
        fail(f"self-loops need as many sources as destinations, got {graph.num_src} and {nodes}")
    src, dst = graph.indices.long(), graph.destinations().long()
    ids = (
        torch.arange(graph.num_edges, device=graph.device)
        if graph.edge_ids is None
        else graph.edge_ids.long()
    )
    loop, every = src == dst, torch.arange(nodes, device=graph.device)
    # The last of several loops stays, as in PyG.
    kept = ids.new_full((nodes,), -1).scatter_reduce(0, src[loop], ids[loop], "amax")
    origin = torch.cat([ids[~loop], torch.where(kept < 0, graph.num_edges, kept)])
    looped = Graph.from_coo((torch.cat([src[~loop], every]), torch.cat([dst[~loop], every])), nodes)
    if graph._order is not None:  # the nodes are the same
        looped = looped._with_order(graph._order, graph.schedule)
    order = looped.edge_ids
    if order is None:
        return looped, origin
    looped.csr = (looped.indptr, looped.indices, None)
    return looped, origin[order.long()]


def gcn_norm(
    graph: Graph, weight: torch.Tensor, improved: bool, add_self_loops: bool
) -> tuple[Graph, torch.Tensor]:
    if add_self_loops:
        graph, looped = graph.add_self_loops(weight, 2.0 if improved else 1.0)
        assert looped is not None
        weight = looped
    # As PyG: sources and destinations are scaled by the degree of destinations.
    degree = neighbor_aggregate(weight.new_ones((graph.num_src, 1)), graph, weight).squeeze(1)
    # A negative or NaN degree makes NaN there, too. The gradient of a node without edges stays finite.
    none = degree == 0
    scale = degree.masked_fill(none, 1.0).pow(-0.5).masked_fill(none, 0.0)
    source, destination = graph.indices.long(), graph.destinations().long()
    if graph.edge_ids is not None:  # to the order of the weights
        source = torch.empty_like(source).scatter_(0, graph.edge_ids.long(), source)
        destination = torch.empty_like(destination).scatter_(0, graph.edge_ids.long(), destination)
    return graph, scale[source] * weight * scale[destination]
