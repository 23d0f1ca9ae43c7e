"""Inputs for topk's benchmarks: normal data, and the kinds of data that break selection algorithms."""

import torch

#: narrow: 24 leading bits in common; outliers: 99 % equal, 1 % normal. Against the sampler: hidden puts the
#: least elements where the kernels sample, so that their bound is too low; shown the greatest, so that it is
#: too high.
DISTRIBUTIONS = (
    "normal", "uniform", "equal", "sorted", "reversed", "narrow", "outliers", "nan", "-inf",
    "hidden", "shown",
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


def sampled(rows: int, n: int, itemsize: int) -> torch.Tensor:
    """Columns that block_row and split_row sample of long rows: runs of `unit` vectors, spread evenly.

    As in csrc/topk/plan_stream.h and stream.cu; where those have changed, the data is merely odd.
    """
    vector, sms = 16 // itemsize, 132
    if n <= 512 * 8 * vector or 2 * rows > sms:  # block_row, 128, 256 or 512 threads of 4 loads
        runs, unit = 16 if rows > 2 * sms else 32 if rows > sms else 64, 32
    else:  # split_row: runs of a few vectors
        per_block, unit = 512 * vector, 4 if rows * n >= 1 << 25 else 2
        blocks = min(max(-(-(n // 32) // per_block), 64 if rows == 1 else 16), 512)
        runs = 512 // unit * max(1, min(n // 8 // per_block, blocks))
    starts = torch.arange(runs) * (n // vector // unit) // runs * unit * vector
    return (starts[:, None] + torch.arange(unit * vector)).flatten().unique()


def fill(x: torch.Tensor, kind: str) -> None:
    """Fill x [rows, n] (float32 or a 16-bit float) with one kind of data, the same on every call."""
    g = generator(x.device)
    if kind in ("normal", "sorted", "reversed", "outliers", "hidden", "shown"):
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
    elif kind in ("hidden", "shown"):
        at = sampled(*x.shape, x.element_size()).to(x.device)
        if len(at) < x.shape[1]:
            x[:, at] = (x[:, at].abs() + 8) * (1 if kind == "shown" else -1)
    elif kind == "nan":
        x.fill_(float("nan"))
    elif kind == "-inf":
        x.fill_(float("-inf"))
    elif kind != "normal":
        raise ValueError(f"no distribution named {kind!r}; there are {', '.join(DISTRIBUTIONS)}")
