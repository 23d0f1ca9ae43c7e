"""Inputs for topk's benchmarks: normal data, and the kinds of data that break selection algorithms."""

import torch

#: narrow: 24 leading bits in common; outliers: 99 % equal, 1 % normal.
DISTRIBUTIONS = (
    "normal", "uniform", "equal", "sorted", "reversed", "narrow", "outliers", "nan", "-inf",
)  # fmt: skip


def generator(device: str | torch.device, seed: int = 1) -> torch.Generator:
    return torch.Generator(device=device).manual_seed(seed)


def random_input(rows: int, n: int, dtype: torch.dtype, device: str, seed: int = 1) -> torch.Tensor:
    """[rows, n]: normal floats, or integers over the whole range of the type."""
    g = generator(device, seed)
    if not dtype.is_floating_point:
        info = torch.iinfo(dtype)
        return torch.randint(info.min, info.max, (rows, n), generator=g, dtype=dtype, device=device)
    return torch.randn(rows, n, generator=g, dtype=dtype, device=device)


def fill(x: torch.Tensor, kind: str) -> None:
    """Fill x [rows, n] (float32 or a 16-bit float) with one kind of data, the same on every call."""
    g = generator(x.device)
    if kind in ("normal", "sorted", "reversed", "outliers"):
        x.normal_(generator=g)
    if kind == "uniform":
        x.uniform_(generator=g)
    elif kind == "equal":
        x.fill_(1.0)
    elif kind in ("sorted", "reversed"):
        for row in x:  # a row at a time: sorting in place needs as much memory again
            row.copy_(row.sort(descending=kind == "reversed").values)
    elif kind == "narrow":
        # The low 8 bits of a float32 are random; a 16-bit float keeps 8 leading bits.
        if x.dtype is torch.float32:
            low, high, as_int = 0x3F800000, 0x3F800100, torch.int32
        else:
            low, high, as_int = 0x3F00, 0x4000, torch.int16
        bits = torch.randint(low, high, x.shape, generator=g, dtype=as_int, device=x.device)
        x.copy_(bits.view(x.dtype))
    elif kind == "outliers":
        x.masked_fill_(torch.rand(x.shape, generator=g, device=x.device) < 0.99, 0.5)
    elif kind == "nan":
        x.fill_(float("nan"))
    elif kind == "-inf":
        x.fill_(float("-inf"))
    elif kind != "normal":
        raise ValueError(f"no distribution named {kind!r}; there are {', '.join(DISTRIBUTIONS)}")
