"""Graph as a pytree: its leaves are its index tensors.

Plans and schedules are no leaves: what comes back from a tree_map walks its rows as given.
"""

from typing import Any

from torch.utils import _pytree

from .graph import Graph


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
