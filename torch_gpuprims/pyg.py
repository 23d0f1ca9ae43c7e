"""PyTorch Geometric: its convolutions replaced in a model, and an Aggregation for its MessagePassing.

    from torch_gpuprims import pyg
    print(pyg.accelerate(model))            # the same parameters, another way through the edges
    SomeConv(16, 32, aggr=pyg.NeighborAggregation("max"))

Importing this module needs torch_geometric; the rest of the package does not.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from .aggregate import REDUCE, neighbor_aggregate
from .graph import Graph
from .nn import GATConv, GATv2Conv, GCNConv, GINConv, PNAConv, SAGEConv, TopKPooling
from .nn._edges import cached

try:
    from torch_geometric import nn as pyg_nn
    from torch_geometric.nn.aggr import Aggregation
except ImportError as error:
    raise ImportError("torch_gpuprims.pyg needs PyTorch Geometric: pip install torch_geometric") from error


@dataclass
class Report:
    """What `accelerate` did; printing it gives a line a layer."""

    replaced: list[tuple[str, str]] = field(default_factory=list)  # (name in the model, class)
    left: list[tuple[str, str, str]] = field(default_factory=list)  # and why

    def __str__(self) -> str:
        lines = [f"replaced {name}: {kind}" for name, kind in self.replaced]
        lines += [f"left {name}: {kind} ({why})" for name, kind, why in self.left]
        return "\n".join(lines) or "no PyTorch Geometric layers"


class Unsupported(Exception):
    """Why a layer stays as it is."""


def _need(ok: bool, why: str) -> None:
    if not ok:
        raise Unsupported(why)


def _aggr(conv: Any) -> str | list[str]:
    """The words for a layer's aggregation; only what words say is known here."""
    given = conv.aggr
    names = [given] if isinstance(given, str) else given
    known = isinstance(names, (list, tuple)) and all(isinstance(n, str) for n in names)
    _need(known and set(names) <= {"add", "sum", "mean", "min", "max"}, f"aggr={given!r}")
    return given if isinstance(given, str) else list(names)


def _gcn(conv: Any) -> torch.nn.Module:
    _need(not conv.improved, "improved=True: PyG ignores it where edges have no weights")
    _need(_aggr(conv) in ("add", "sum"), f"aggr={conv.aggr!r}")
    return GCNConv(
        conv.in_channels, conv.out_channels, conv.improved, conv.cached, conv.add_self_loops, conv.normalize,
        conv.bias is not None,
    )  # fmt: skip


def _sage(conv: Any) -> torch.nn.Module:
    return SAGEConv(
        conv.in_channels, conv.out_channels, _aggr(conv), conv.normalize, conv.root_weight, conv.project,
        conv.lin_l.bias is not None,
    )  # fmt: skip


def _gin(conv: Any) -> torch.nn.Module:
    aggr = _aggr(conv)
    _need(isinstance(aggr, str), f"aggr={aggr!r}")
    return GINConv(conv.nn, conv.initial_eps, isinstance(conv.eps, torch.nn.Parameter), aggr=str(aggr))


def _attention_options(conv: Any) -> dict[str, Any]:
    _need(conv.fill_value != "mul", "fill_value='mul'")
    # The two layers' own defaults of aggr.
    _need(conv.aggr in ("add", "sum"), f"aggr={conv.aggr!r}")
    names = (
        "in_channels", "out_channels", "heads", "concat", "negative_slope", "dropout", "add_self_loops",
        "edge_dim", "fill_value", "residual",
    )  # fmt: skip
    return {name: getattr(conv, name) for name in names}


def _gat(conv: Any) -> torch.nn.Module:
    return GATConv(**_attention_options(conv), bias=conv.bias is not None)


def _gatv2(conv: Any) -> torch.nn.Module:
    options = _attention_options(conv)
    _need((conv.lin_l.bias is not None) == (conv.bias is not None), "bias in some places only")
    return GATv2Conv(**options, bias=conv.bias is not None, share_weights=conv.share_weights)


def _pna(conv: Any) -> torch.nn.Module:
    from torch_geometric.nn.aggr import (
        MaxAggregation,
        MeanAggregation,
        MinAggregation,
        StdAggregation,
        SumAggregation,
        VarAggregation,
    )

    names = {
        SumAggregation: "sum", MeanAggregation: "mean", MinAggregation: "min", MaxAggregation: "max",
        VarAggregation: "var", StdAggregation: "std",
    }  # fmt: skip
    aggr = conv.aggr_module.aggr
    parts = list(aggr.aggrs) if hasattr(aggr, "aggrs") else [aggr]
    _need(all(type(part) in names for part in parts), "an aggregator that is not known here")
    _need(all(len(tower) == 1 for tower in conv.pre_nns), "pre_layers above 1")
    _need(conv.edge_dim is None, "edge features")
    posts = list(conv.post_nns[0])
    acts = [module for tower in conv.post_nns for module in list(tower)[1::2] if module is not None]
    _need(not any(list(act.parameters()) for act in acts), "an activation with parameters")
    made = PNAConv(
        conv.in_channels, conv.out_channels, [names[type(part)] for part in parts],
        conv.aggr_module.scaler, torch.ones(1, device="cpu"), None, conv.towers, 1, (len(posts) + 1) // 2,
        conv.divide_input, acts[0] if acts else None, None,
        isinstance(conv.aggr_module.avg_deg_lin, torch.nn.Parameter),
    )  # fmt: skip
    made.aggr_module.initial = {
        name: getattr(conv.aggr_module, f"init_{name}") for name in ("avg_deg_lin", "avg_deg_log")
    }
    return made


def _topk_pool(pool: Any) -> torch.nn.Module:
    return TopKPooling(pool.in_channels, pool.ratio, pool.min_score, pool.multiplier, pool.select.act)


_MAKERS: dict[type, Callable[[Any], torch.nn.Module]] = {
    pyg_nn.GCNConv: _gcn,
    pyg_nn.SAGEConv: _sage,
    pyg_nn.GINConv: _gin,
    pyg_nn.GATConv: _gat,
    pyg_nn.GATv2Conv: _gatv2,
    pyg_nn.PNAConv: _pna,
    pyg_nn.TopKPooling: _topk_pool,
}


def _check_common(old: Any) -> None:
    """What PyG's base classes can be told and our layers cannot."""
    if isinstance(old, pyg_nn.MessagePassing):
        _need(old.flow == "source_to_target", f"flow={old.flow!r}")
        _need(old.decomposed_layers == 1, "decomposed_layers")
        _need(not old.explain, "it is being explained")
    channels = getattr(old, "in_channels", 1)
    sizes = channels if isinstance(channels, (tuple, list)) else (channels,)
    _need(all(size > 0 for size in sizes), "sizes that the first call will tell: call the model once")
    hooks = [value for name, value in vars(old).items() if name.endswith("_hooks") and "propagate" in name]
    _need(not any(hooks), "it has hooks")


_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def _check_hooks(old: torch.nn.Module, shared: set[torch.nn.Module]) -> None:
    """Those of a module that goes would be lost; one that `new` took over keeps its own."""
    for path, module in old.named_modules():
        if module not in shared and any(getattr(module, name, None) for name in _HOOKS):
            raise Unsupported(f"its {path} has hooks" if path else "it has hooks")


def _adopt(old: torch.nn.Module, new: torch.nn.Module, shared: set[torch.nn.Module]) -> None:
    """Give `new` the parameter and buffer objects of `old`: optimizers and state_dict keep working; and its
    modes, where modules are not the same ones."""

    def holder(path: str) -> tuple[torch.nn.Module, str]:
        *folders, name = path.split(".")
        return new.get_submodule(".".join(folders)), name

    mine = {name for name, _ in [*new.named_parameters(remove_duplicate=False),
                                 *new.named_buffers(remove_duplicate=False)]}  # fmt: skip
    theirs = [*old.named_parameters(remove_duplicate=False), *old.named_buffers(remove_duplicate=False)]
    _need(mine == {name for name, _ in theirs}, "its parameters have other names")
    for path, tensor in theirs:
        module, name = holder(path)
        kind = module._parameters if isinstance(tensor, torch.nn.Parameter) else module._buffers
        _need(name in kind, "its parameters have other names")
        kind[name] = tensor  # type: ignore[assignment]
    modes = {path: module.training for path, module in old.named_modules()}
    for path, module in new.named_modules():
        if module not in shared:
            module.training = modes.get(path, old.training)


def replacement(old: torch.nn.Module) -> torch.nn.Module:
    """Our layer in place of a PyG layer, around the same parameters; raises Unsupported."""
    make = _MAKERS.get(type(old))
    if make is None:
        raise Unsupported("no counterpart here")
    _check_common(old)
    try:
        with torch.device("meta"):  # its own parameters are thrown away: no memory, no random numbers
            new = make(old)
    except ValueError as error:
        raise Unsupported(str(error)) from None
    shared = set(old.modules()) & set(new.modules())  # GINConv's nn, activations
    _check_hooks(old, shared)
    _adopt(old, new, shared)
    return new


def accelerate(model: torch.nn.Module) -> Report:
    """Replace the GCNConv, SAGEConv, GINConv, GATConv, GATv2Conv, PNAConv and TopKPooling layers of a PyTorch
    Geometric model by ours, in place; parameters stay the same objects, so optimizers and checkpoints go on.

    Returns the Report of what was replaced and what was left, and why. Calls stay as they were: edge_index is
    converted and kept while the tensor lives unchanged. A layer that occurs twice in the model is replaced by
    one layer. Features must be [nodes, channels]: PyG's layers take a batch [.., nodes, channels] as well,
    ours raise RuntimeError. A model that is itself such a layer cannot be replaced in place: use
    `replacement(model)`.
    """
    report = Report()
    made: dict[torch.nn.Module, torch.nn.Module] = {}
    kinds = (pyg_nn.MessagePassing, pyg_nn.TopKPooling)
    if isinstance(model, kinds):
        report.left.append(("", type(model).__name__, "it is the model itself: use replacement(model)"))
    for parent_name, parent in list(model.named_modules()):
        for name, child in list(parent._modules.items()):
            if not isinstance(child, kinds):
                continue
            path, kind = f"{parent_name}.{name}".lstrip("."), type(child).__name__
            try:
                if child not in made:
                    made[child] = replacement(child)
                setattr(parent, name, made[child])
                report.replaced.append((path, kind))
            except Unsupported as why:
                report.left.append((path, kind, str(why)))
    return report


class NeighborAggregation(Aggregation):
    """neighbor_aggregate as the `aggr` of any MessagePassing layer: deterministic, in float32 where messages
    have 16 bits, without atomics.

    The messages of all edges exist already when a layer aggregates them, so this saves no memory; the layers
    of torch_gpuprims.nn do. The order of edges by destination is kept while the tensor that names the
    destinations (or that it is a view of, as edge_index) lives unchanged.
    """

    def __init__(self, reduce: str = "sum") -> None:
        super().__init__()
        reduce = "sum" if reduce == "add" else reduce
        if not isinstance(reduce, str) or reduce not in REDUCE:
            raise ValueError(
                f"NeighborAggregation: reduce must be one of {', '.join(REDUCE)}, got {reduce!r}"
            )
        self.reduce_name = reduce

    def forward(
        self, x: torch.Tensor, index: torch.Tensor | None = None, ptr: torch.Tensor | None = None,
        dim_size: int | None = None, dim: int = -2,
    ) -> torch.Tensor:  # fmt: skip
        dim = dim + x.dim() if dim < 0 else dim
        edges = x.shape[dim]
        source = index if ptr is None else ptr
        if source is None:
            raise ValueError("NeighborAggregation: index or ptr must be given")

        def build() -> Graph:
            every = torch.arange(edges, device=x.device)
            if ptr is not None:
                return Graph.from_csr(ptr, every, max(edges, 1))
            assert index is not None
            rows = dim_size if dim_size is not None else int(index.max()) + 1 if edges else 0
            return Graph.from_coo((every, index), num_src=max(edges, 1), num_dst=rows)

        graph = cached(source, ("edges", edges, dim_size, ptr is None), build)
        flat = x.movedim(dim, 0)
        if edges == 0:
            flat = flat.new_zeros((1, *flat.shape[1:]))
        return neighbor_aggregate(flat, graph, reduce=self.reduce_name).movedim(0, dim)

    def __repr__(self) -> str:
        return f"NeighborAggregation({self.reduce_name!r})"
