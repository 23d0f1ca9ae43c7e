"""Inputs for the sorts' benchmarks, and the kinds of data that make radix sorts slow or fast."""

import torch

DISTRIBUTIONS = ("uniform", "normal", "sorted", "reversed", "constant", "few", "range20", "zipf")

#: For filling dtypes whose random kernels PyTorch lacks.
_TWIN = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


def random_bits(shape: tuple[int, ...], dtype: torch.dtype, device: str, seed: int = 1) -> torch.Tensor:
    """Integers over the whole range of the type."""
    g = torch.Generator(device=device).manual_seed(seed)
    twin = _TWIN.get(dtype, dtype)
    info = torch.iinfo(twin)
    return torch.randint(info.min, info.max, shape, generator=g, dtype=twin, device=device).view(dtype)


def make(shape: tuple[int, ...], dtype: torch.dtype, kind: str, device: str, seed: int = 1) -> torch.Tensor:
    """A tensor of one kind of data, the same on every call."""
    g = torch.Generator(device=device).manual_seed(seed)
    n = shape[-1]
    if kind == "constant":
        return torch.ones(shape, dtype=torch.uint8, device=device).to(dtype)
    if kind in ("sorted", "reversed"):
        line = torch.arange(n, device=device)
        line = line if kind == "sorted" else n - 1 - line
        if not dtype.is_floating_point:
            line = line % (1 + torch.iinfo(_TWIN.get(dtype, dtype)).max) if n > 127 else line
            line = line.sort(descending=kind == "reversed").values
        return line.to(_TWIN.get(dtype, dtype)).view(dtype).expand(shape).contiguous()
    if kind == "uniform":
        if dtype.is_floating_point:
            return torch.rand(shape, generator=g, dtype=dtype, device=device)
        return random_bits(shape, dtype, device, seed)
    if kind == "normal":
        x = torch.randn(shape, generator=g, device=device)
        return x.to(dtype) if dtype.is_floating_point else (x * 20).to(_TWIN.get(dtype, dtype)).view(dtype)
    if kind == "zipf":  # rank 1 / u
        x = 1 / torch.rand(shape, generator=g, device=device).clamp_min(1e-6)
        top = 1e4 if dtype.is_floating_point else float(torch.iinfo(_TWIN.get(dtype, dtype)).max)
        return x.clamp_max(min(top, 2**30)).to(_TWIN.get(dtype, dtype)).view(dtype)
    high = 3 if kind == "few" else 1 << 20
    if not dtype.is_floating_point:
        high = min(high, torch.iinfo(_TWIN.get(dtype, dtype)).max)
    x = torch.randint(0, high, shape, generator=g, device=device, dtype=torch.int32)
    return x.to(dtype) if dtype.is_floating_point else x.to(_TWIN.get(dtype, dtype)).view(dtype)


def case_input(args: dict, device: str) -> torch.Tensor:
    """The input of a case of targets.json."""
    dtype = getattr(torch, args["dtype"])
    shape = (args["rows"], args["n"]) if "rows" in args else (args["n"],)
    if "high" in args:
        g = torch.Generator(device=device).manual_seed(1)
        return torch.randint(0, args["high"], shape, generator=g, dtype=dtype, device=device)
    if dtype.is_floating_point:
        g = torch.Generator(device=device).manual_seed(1)
        return torch.randn(shape, generator=g, dtype=dtype, device=device)
    return random_bits(shape, dtype, device)
