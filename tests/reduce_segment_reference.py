"""segment_reduce once more in NumPy: values in float64, and the two trees that fix its bits."""

from itertools import pairwise

import numpy as np
import torch

from torch_gpuprims import segment_reduce

OPS = ("sum", "mean", "max", "min", "prod", "logsumexp")

FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)

INTS = (
    torch.int8, torch.int16, torch.int32, torch.int64,
    torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.bool,
)  # fmt: skip


def cut(lengths):
    return torch.tensor([0, *np.cumsum(lengths, dtype=np.int64).tolist()])


def draw(shape, dtype, seed, small=False):
    """Values whose product stays finite where `small`."""
    g = np.random.default_rng(seed)
    if dtype.is_floating_point:
        x = np.exp(g.normal(0, 0.01, shape)) * g.choice([-1, 1], shape) if small else g.normal(0, 3, shape)
        return torch.from_numpy(x).to(dtype)
    if dtype == torch.bool:
        return torch.from_numpy(g.integers(0, 2, shape).astype(bool))
    info = torch.iinfo(dtype)
    x = g.integers(max(info.min, -(2**63)), min(info.max, 2**63 - 1), shape, endpoint=True)
    x = np.where(g.integers(0, 2, shape) == 0, np.clip(x, -3 if info.min < 0 else 0, 3), x)
    return torch.from_numpy(x).to(dtype)


def empty_value(op, dtype):
    if op in ("sum", "prod", "mean"):
        return {"sum": 0, "prod": 1, "mean": np.nan}[op]
    if dtype.is_floating_point:
        return np.inf if op == "min" else -np.inf
    if dtype == torch.bool:
        return op == "min"
    return torch.iinfo(dtype).max if op == "min" else torch.iinfo(dtype).min


def numpy_of(x):
    return x.float().numpy() if x.dtype == torch.bfloat16 else x.numpy()


def reference(part, op, dtype):
    """In NumPy, float64; integers exact, modulo 2^64."""
    if part.shape[0] == 0:
        return np.full(part.shape[1:], empty_value(op, dtype))
    if dtype.is_floating_point:
        x = part.astype(np.float64)
        if op == "logsumexp":
            return np.logaddexp.reduce(x, axis=0)
        return {"sum": np.sum, "mean": np.mean, "max": np.max, "min": np.min, "prod": np.prod}[op](x, axis=0)
    if op in ("sum", "prod"):
        x = part if part.dtype == np.uint64 else part.astype(np.int64)
        return x.sum(0) if op == "sum" else x.prod(0)
    return part.max(0) if op == "max" else part.min(0)


def check(x, indptr, op, offsets=None):
    out = segment_reduce(x, indptr.to(x.device) if offsets is None else offsets, op)
    counts = op in ("sum", "prod") and not x.dtype.is_floating_point and x.dtype != torch.uint64
    assert out.dtype == (torch.int64 if counts else x.dtype)
    assert out.shape == (len(indptr) - 1, *x.shape[1:])
    got, values = numpy_of(out.cpu()), numpy_of(x.cpu())
    for s, (begin, end) in enumerate(pairwise(indptr.tolist())):
        want = reference(values[begin:end], op, x.dtype)
        if not x.dtype.is_floating_point:
            assert np.array_equal(got[s], want), (op, s)
            continue
        eps = torch.finfo(x.dtype).eps
        size = np.abs(values[begin:end].astype(np.float64)).sum(0) if op == "sum" else np.abs(want)
        if op == "mean":
            size = np.abs(values[begin:end].astype(np.float64)).mean(0) if end > begin else 0
        steps = 4 + (end - begin if op == "prod" else np.log2(end - begin + 1))
        bound = np.where(np.isfinite(want), 2 * eps * np.asarray(size), 0)
        bound = bound + steps * torch.finfo(torch.float64 if x.dtype == torch.float64 else
                                            torch.float32).eps * np.asarray(size)  # fmt: skip
        most = torch.finfo(x.dtype).max
        over = np.abs(want) > most
        fine = (got[s] == want) | (np.isnan(got[s]) & np.isnan(want)) | over
        with np.errstate(invalid="ignore"):
            fine |= np.abs(got[s] - want) <= bound + 1e-7 * (op == "logsumexp")
        assert np.all(fine), (op, s, got[s], want)


def tree(x, op="sum"):
    """The tree of a flat float32 segment, as docs/reduce_ladder.md defines it, in NumPy float32."""
    x = np.asarray(x, dtype=np.float32)
    chunks = []
    for at in range(0, len(x), 4096):
        part = np.pad(x[at : at + 4096], (0, -len(x[at : at + 4096]) % 128)).reshape(-1, 32, 4)
        acc = np.zeros((32, 4), np.float32)
        for row in part:
            acc = acc + row
        acc = acc[:, :2] + acc[:, 2:]
        acc = (acc[:, :1] + acc[:, 1:])[:, 0]
        for half in (16, 8, 4, 2, 1):
            acc = acc[:half] + acc[half : 2 * half]
        chunks.append(acc[0])
    groups = []
    for at in range(0, len(chunks), 8):
        v = np.array(chunks[at : at + 8] + [0] * (8 - len(chunks[at : at + 8])), np.float32)
        while len(v) > 1:
            v = v[::2] + v[1::2]
        groups.append(v[0])
    acc = np.zeros(256, np.float32)
    for g, value in enumerate(groups):
        acc[g % 256] += value
    for half in (128, 64, 32, 16, 8, 4, 2, 1):
        acc = acc[:half] + acc[half : 2 * half]
    return acc[0]


def tree_of_rows(x):
    """The tree of rows: pieces of 64, eight lanes."""
    values = [np.asarray(row, np.float32) for row in x]
    while True:
        pieces = []
        for at in range(0, len(values), 64):
            lanes = [np.zeros_like(values[0]) for _ in range(8)]
            for i, row in enumerate(values[at : at + 64]):
                lanes[i % 8] = lanes[i % 8] + row
            while len(lanes) > 1:
                half = len(lanes) // 2
                lanes = [a + b for a, b in zip(lanes[:half], lanes[half:], strict=True)]
            pieces.append(lanes[0])
        values = pieces
        if len(values) == 1:
            return values[0]
