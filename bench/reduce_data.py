"""The reductions' calls: ours, PyTorch's and torch.compile's of the same question."""

from collections.abc import Callable
from typing import Any

import torch

import torch_gpuprims

_WIDE = {torch.float16: torch.float32, torch.bfloat16: torch.float32}


def make(shape: tuple[int, ...], dtype: torch.dtype, device: str) -> torch.Tensor:
    g = torch.Generator(device=device).manual_seed(1)
    if dtype.is_floating_point:
        return torch.randn(shape, generator=g, dtype=_WIDE.get(dtype, dtype), device=device).to(dtype)
    if dtype == torch.bool:
        return torch.zeros(shape, dtype=dtype, device=device)  # any has to read it all
    return torch.randint(-100 if dtype.is_signed else 0, 100, shape, generator=g, dtype=dtype, device=device)


def ours(x: torch.Tensor, op: str, dim: Any) -> Callable[[], Any]:
    if op == "stats":
        return lambda: torch_gpuprims.stats(x, dim)
    return lambda: torch_gpuprims.reduce(x, op, dim)


def _stats(x: torch.Tensor, dim: Any) -> tuple[torch.Tensor, ...]:
    d = tuple(range(x.dim())) if dim is None else dim
    return x.amin(d), x.amax(d), x.mean(d), x.var(d), x.isnan().sum(d)


def torch_function(op: str, dim: Any) -> Callable[[torch.Tensor], Any]:
    """PyTorch's own answer, in the fewest passes that eager PyTorch offers."""
    match op:
        case "max" | "min":
            return lambda x: getattr(torch, f"a{op}")(x, () if dim is None else dim)
        case "norm":
            return lambda x: torch.linalg.vector_norm(x, dim=dim)
        case "logsumexp":
            return lambda x: torch.logsumexp(x, tuple(range(x.dim())) if dim is None else dim)
        case "stats":
            return lambda x: _stats(x, dim)
        case "any" | "all":
            return lambda x: getattr(torch, op)(x) if dim is None else getattr(torch, op)(x, dim)
        case _:
            return lambda x: getattr(torch, op)(x, dim=dim)


def theirs(x: torch.Tensor, op: str, dim: Any) -> Callable[[], Any]:
    function = torch_function(op, dim)
    if op == "stats":  # var_mean and aminmax share a read
        d = tuple(range(x.dim())) if dim is None else dim

        def fused() -> Any:
            var, mean = torch.var_mean(x, d)
            least, most = (
                (torch.aminmax(x) if dim is None else torch.aminmax(x, dim=dim))
                if (dim is None or isinstance(dim, int))
                else (x.amin(d), x.amax(d))
            )
            return least, most, mean, var, x.isnan().sum(d)

        return fused
    return lambda: function(x)


def compiled(x: torch.Tensor, op: str, dim: Any) -> Callable[[], Any] | None:
    """torch.compile's kernel for x, or None where it cannot make one."""
    torch._dynamo.reset()  # its limit of recompiles counts the functions that share their code
    try:
        function = torch.compile(torch_function(op, dim), dynamic=False)
        function(x)
    except Exception as error:  # whatever the compiler of the machine dislikes
        print(f"torch.compile is left out: {type(error).__name__}: {str(error).splitlines()[0][:100]}")
        return None
    return lambda: function(x)


def wrong(x: torch.Tensor, op: str, dim: Any) -> str | None:
    """What is wrong with our result, or None; compared with PyTorch in float64 on a part where x is large."""
    got = ours(x, op, dim)()
    if x.numel() > 1 << 26 and dim is not None and op != "stats":  # some results are enough
        keep = [slice(None)] * x.dim()
        keep[0 if dim != 0 else -1] = slice(0, 64)
        x, got = x[tuple(keep)], got[tuple(k for d, k in enumerate(keep) if d != dim % x.dim())]
    wide = x
    if (
        x.dtype.is_floating_point
        and x.dtype != torch.float64
        and op not in ("argmax", "argmin", "max", "min")
    ):
        wide = x if x.numel() > 1 << 28 else x.double()
    want = torch_function(op, dim)(wide)
    pairs = zip(got[:5], want, strict=True) if op == "stats" else [(got, want)]
    for a, e in pairs:
        loose = 2e-2 if x.dtype == torch.bfloat16 else 5e-3 if x.dtype == torch.float16 else 1e-4
        scale = float(x.numel() // max(a.numel(), 1)) ** 0.5 if op in ("sum", "stats") else 1.0
        close = torch.allclose(a.double(), e.double(), rtol=loose, atol=loose * scale)
        if not (close if x.dtype.is_floating_point else torch.equal(a, e)):
            return f"{op} gives {a.flatten()[:3].tolist()}, PyTorch {e.flatten()[:3].tolist()}"
    return None
