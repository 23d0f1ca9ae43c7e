"""PNAConv: several reducers and degree scalers, with PyTorch Geometric's arguments and state."""

import math
from collections.abc import Sequence
from typing import Any

import torch

from ..aggregate import neighbor_aggregate
from ..graph import Graph
from ._edges import Edges, as_graph, check_matrix, given_edges
from ._linear import set_lazy_error

AGGREGATORS = ("sum", "add", "mean", "min", "max", "var", "std")
SCALERS = ("identity", "amplification", "attenuation", "linear", "inverse_linear")
_LEAST_VARIANCE = 1e-5  # PyG's: a smaller deviation counts as 0


class DegreeScalers(torch.nn.Module):
    """The averages of degree and its logarithm over the training set, under PyG's names."""

    avg_deg_lin: torch.Tensor
    avg_deg_log: torch.Tensor

    def __init__(self, deg: torch.Tensor, train_norm: bool) -> None:
        super().__init__()
        deg = deg.double()
        every = torch.arange(len(deg), device=deg.device, dtype=torch.float64)
        count = float(deg.sum())
        if count <= 0:
            raise ValueError("PNAConv: deg must count at least one node")
        self.initial = {
            "avg_deg_lin": float((every * deg).sum()) / count,
            "avg_deg_log": float(((every + 1).log() * deg).sum()) / count,
        }
        for name, value in self.initial.items():
            start = torch.full((1,), value)
            if train_norm:
                self.register_parameter(name, torch.nn.Parameter(start))
            else:
                self.register_buffer(name, start)

    def reset_parameters(self) -> None:
        for name, value in self.initial.items():
            getattr(self, name).data.fill_(value)

    def factor(self, scaler: str, degree: torch.Tensor) -> torch.Tensor:
        """[num_dst, 1]"""
        log, linear = self.avg_deg_log, self.avg_deg_lin
        if scaler == "amplification":
            return (degree + 1).log() / log
        if scaler == "attenuation":
            return log / (degree.clamp(min=1) + 1).log()
        return degree / linear if scaler == "linear" else linear / degree.clamp(min=1)


def activation(act: str | torch.nn.Module | None, kwargs: dict[str, Any] | None) -> torch.nn.Module:
    """A module for what PyG's layers take as `act`."""
    if act is None or isinstance(act, torch.nn.Module):
        return torch.nn.Identity() if act is None else act
    known = {name.lower(): name for name in torch.nn.modules.activation.__all__}
    name = known.get(str(act).lower().replace("_", ""))
    if name is None:
        raise ValueError(f"PNAConv: act must be a module or the name of one of torch.nn, got {act!r}")
    return getattr(torch.nn, name)(**(kwargs or {}))  # type: ignore[no-any-return]


class PNAConv(torch.nn.Module):
    """Principal neighbourhood aggregation (Corso and others, 2020), with PyG's arguments, state and results.

    A message is a linear layer of the two ends, W_1 x_destination + W_2 x_source + b, so every reducer of
    messages is one of the sources' W_2 x, shifted by the destination's part: nothing of size edges * channels
    is made. For that, pre_layers must be 1 and edges have no features (ValueError otherwise).

    Args:
        aggregators: several of "sum" ("add"), "mean", "min", "max", "var", "std".
        scalers: several of "identity", "amplification", "attenuation", "linear", "inverse_linear".
        deg: histogram of the in-degrees of the training set.
        act, act_kwargs: between post_layers: the name of a torch.nn module, however it is spelt ("relu",
            "LeakyReLU", "leaky_relu"), and its arguments; or a module, or None.

    var and std are taken of values less their mean over all nodes, against cancellation.
    """

    def __init__(
        self, in_channels: int, out_channels: int, aggregators: Sequence[str], scalers: Sequence[str],
        deg: torch.Tensor, edge_dim: int | None = None, towers: int = 1, pre_layers: int = 1,
        post_layers: int = 1, divide_input: bool = False, act: str | torch.nn.Module | None = "relu",
        act_kwargs: dict[str, Any] | None = None, train_norm: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        set_lazy_error(self, in_channels)
        for name, given, known in (("aggregators", aggregators, AGGREGATORS), ("scalers", scalers, SCALERS)):
            unknown = [word for word in given if word not in known]
            if unknown or not given:
                wrong = unknown[0] if unknown else given
                raise ValueError(f"PNAConv: {name} must be among {', '.join(known)}, got {wrong!r}")
        if pre_layers != 1 or edge_dim is not None:
            raise ValueError(
                "PNAConv: pre_layers must be 1 and edge_dim None (messages are not linear otherwise)"
            )
        if out_channels % towers or (divide_input and in_channels % towers):
            raise ValueError(f"PNAConv: channels must be multiples of towers ({towers})")
        self.in_channels, self.out_channels, self.towers = in_channels, out_channels, towers
        self.divide_input = divide_input
        self.aggregators, self.scalers = list(aggregators), list(scalers)
        self.F_in, self.F_out = in_channels // towers if divide_input else in_channels, out_channels // towers
        self.aggr_module = DegreeScalers(deg, train_norm)
        self.pre_nns, self.post_nns = torch.nn.ModuleList(), torch.nn.ModuleList()
        wide = (len(self.aggregators) * len(self.scalers) + 1) * self.F_in
        for _ in range(towers):
            self.pre_nns.append(torch.nn.Sequential(torch.nn.Linear(2 * self.F_in, self.F_in)))
            modules: list[torch.nn.Module] = [torch.nn.Linear(wide, self.F_out)]
            for _ in range(post_layers - 1):
                modules += [activation(act, act_kwargs), torch.nn.Linear(self.F_out, self.F_out)]
            self.post_nns.append(torch.nn.Sequential(*modules))
        self.lin = torch.nn.Linear(out_channels, out_channels)

    def reset_parameters(self) -> None:
        for module in self.modules():
            if isinstance(module, (torch.nn.Linear, DegreeScalers)):
                module.reset_parameters()

    def prepare(self, graph: Graph) -> Graph:
        """Build what this layer needs of a graph, for torch.compile and CUDA graph capture."""
        return graph.prepare()

    def forward(
        self, x: torch.Tensor, graph: Edges | None = None, edge_attr: None = None, *,
        edge_index: Edges | None = None,
    ) -> torch.Tensor:  # fmt: skip
        """x [num_nodes, in_channels] and a Graph, edge_index or sparse matrix: [num_nodes, out_channels].
        edge_attr has PyG's place and must be None."""
        if edge_attr is not None:
            raise ValueError("PNAConv: edge_attr must be None (edges have no features here)")
        check_matrix(self, x)
        graph = as_graph(given_edges(self, graph, edge_index), x.shape[0])
        parts = [
            x[:, i * self.F_in : (i + 1) * self.F_in] if self.divide_input else x for i in range(self.towers)
        ]
        weights = [tower[0].weight.split(self.F_in, 1) for tower in self.pre_nns]  # type: ignore[index,operator]
        own = torch.cat(
            [torch.nn.functional.linear(p, w[0], tower[0].bias)  # type: ignore[index]
             for p, w, tower in zip(parts, weights, self.pre_nns, strict=True)], 1
        )  # fmt: skip
        other = torch.cat(
            [torch.nn.functional.linear(p, w[1]) for p, w in zip(parts, weights, strict=True)], 1
        )
        degree = graph.degree().to(own.dtype)[:, None]
        reduced = self._reduce(
            own, other, graph, degree
        )  # a matrix an aggregator, [num_nodes, towers * F_in]
        every = []
        for scaler in self.scalers:
            factor = None if scaler == "identity" else self.aggr_module.factor(scaler, degree)
            every += reduced if factor is None else [part * factor for part in reduced]
        stacked = torch.stack(every, 1).view(x.shape[0], len(every), self.towers, self.F_in)
        outs = [
            tower(torch.cat([part, stacked[:, :, i].flatten(1)], 1))
            for i, (part, tower) in enumerate(zip(parts, self.post_nns, strict=True))
        ]
        return self.lin(torch.cat(outs, 1))

    def _reduce(
        self, own: torch.Tensor, other: torch.Tensor, graph: Graph, degree: torch.Tensor
    ) -> list[torch.Tensor]:
        there = (degree > 0).to(own.dtype)
        mean: torch.Tensor | None = None
        variance: torch.Tensor | None = None
        if any(name in ("var", "std") for name in self.aggregators):
            centre = other.detach().mean(0)
            shifted = other - centre
            both = neighbor_aggregate(torch.cat([shifted, shifted * shifted], 1), graph, reduce="mean")
            first, second = both.split(other.shape[1], 1)
            variance = second - first * first
            mean = (own + first + centre) * there  # of the same read
        elif any(name in ("sum", "add", "mean") for name in self.aggregators):
            mean = (own + neighbor_aggregate(other, graph, reduce="mean")) * there
        results = []
        for name in self.aggregators:
            if name in ("sum", "add"):
                assert mean is not None
                results.append(mean * degree)
            elif name == "mean":
                assert mean is not None
                results.append(mean)
            elif name in ("min", "max"):
                results.append((own + neighbor_aggregate(other, graph, reduce=name)) * there)
            elif name == "var":
                assert variance is not None
                results.append(variance)
            else:
                assert variance is not None
                deviation = variance.clamp(min=_LEAST_VARIANCE).sqrt()
                results.append(deviation.masked_fill(deviation <= math.sqrt(_LEAST_VARIANCE), 0.0))
        return results

    def __repr__(self) -> str:
        return f"PNAConv({self.in_channels}, {self.out_channels}, towers={self.towers}, edge_dim=None)"
