"""The attention kernels on the host, a fiber a thread, under AddressSanitizer, against the CPU kernels."""

import struct
from pathlib import Path

import emulate
import numpy as np
import pytest
import torch
from emulate import HERE, compile_program, on_the_host

import torch_gpuprims.attention  # noqa: F401  registers the ops

raw = torch.ops.gpuprims
pytestmark = on_the_host
DTYPES = {torch.float16: 8, torch.bfloat16: 9, torch.float32: 10, torch.float64: 11}  # enum Dtype
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


@pytest.fixture(scope="session")
def attention_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("emulated_attention") / "emulated_attention"
    return compile_program(target, [HERE / "emulator/attention.cpp"])


def make(
    dtype, heads, channels, *, rows=7, columns=9, hub=0, terms=7, dropout=0.0, offset=0, checked=1, seed=0
):
    """A problem: the graph in both directions with shuffled ids, and every tensor that the kernels take."""
    g = torch.Generator().manual_seed(seed)
    degree = torch.randint(0, 6, (rows,), generator=g)
    degree[2], degree[3] = 0, hub or 40
    edges = int(degree.sum())
    dst = torch.arange(rows).repeat_interleave(degree)
    src = torch.randint(columns, (edges,), generator=g)
    ids = torch.randperm(edges, generator=g)
    order = torch.argsort(src, stable=True)

    def offsets(nodes, count):
        return torch.cat(
            [torch.zeros(1, dtype=torch.int64), torch.bincount(nodes, minlength=count).cumsum(0)]
        )

    def draw(*shape):
        return torch.randn(*shape, generator=g, dtype=torch.float64).to(dtype)

    wide = torch.float64 if dtype == torch.float64 else torch.float32
    return {
        "dtype": dtype, "sizes": (rows, columns, edges, heads, channels), "terms": terms, "offset": offset,
        "checked": checked, "dropout": dropout, "slope": 0.2,
        "graph": [offsets(dst, rows), src.int(), ids, offsets(src, columns), dst[order].int(), ids[order]],
        "x": draw(columns, heads, channels), "a_src": draw(columns, heads), "a_dst": draw(rows, heads),
        "a_edge": draw(edges, heads), "seed": torch.tensor([seed + 77]), "grad": draw(rows, heads, channels),
        "grad_lse": draw(rows, heads).to(wide), "x_dst": draw(rows, heads, channels),
        "att": draw(heads, channels), "edge": draw(edges, heads, channels),
    }  # fmt: skip


def expected(p):
    """The same by the CPU kernels."""
    slope, dropout = p["slope"], p["dropout"]
    graph = p["graph"]
    terms = [t if p["terms"] >> i & 1 else None for i, t in enumerate((p["a_src"], p["a_dst"], p["a_edge"]))]
    args = (p["x"], *terms, p["seed"], *graph, slope, dropout)
    bias = p["att"] if p["terms"] & 8 else None
    out, lse, positive = raw.neighbor_attention(*args, 1, True, bias)
    grads = raw.neighbor_attention_grad(p["grad"], p["grad_lse"], out, lse, *args, 1, bias=bias)
    alpha = raw.edge_softmax(p["a_edge"], graph[0], graph[2], 1)
    grad_alpha = raw.edge_softmax_grad(p["a_edge"], alpha, graph[0], graph[2], 1)
    edge = p["edge"] if p["terms"] & 4 else None
    v2 = (p["x"], p["x_dst"], p["att"], edge, *graph, slope)
    return [
        out,
        lse,
        positive,
        *grads,
        *grads[2:],
        grads[2],
        alpha,
        grad_alpha,
        raw.gatv2_score(*v2),
        *raw.gatv2_score_grad(p["a_edge"], *v2),
    ]


TENSORS = ("x", "a_src", "a_dst", "a_edge", "seed", "grad", "grad_lse", "x_dst", "att", "edge")
NAMES = (
    "out", "lse", "positive", "grad_x", "grad_src", "grad_dst", "grad_edge", "direct_dst", "direct_edge",
    "kept_dst", "alpha", "grad_alpha", "score", "v2_src", "v2_dst", "v2_att", "v2_edge",
)  # fmt: skip


def run(program: Path, problems: list[dict]) -> list[list[torch.Tensor]]:
    """Run all problems and compare each result with the CPU's; returns the results."""
    sent = b""
    for i, p in enumerate(problems):
        numbers = (
            DTYPES[p["dtype"]], *p["sizes"], p["terms"], p["offset"], p["checked"], i, p["dropout"] > 0
        )  # fmt: skip
        sent += struct.pack("11q2d", *numbers, p["slope"], p["dropout"])
        for t in (*p["graph"], *(p[name] for name in TENSORS)):
            sent += t.contiguous().view(torch.uint8).numpy().tobytes()
    out = emulate.run(program, sent=sent)
    at, results = 0, []
    for p in problems:
        got = []
        for name, e in zip(NAMES, expected(p), strict=True):
            size = e.numel() * e.element_size()
            part = torch.frombuffer(bytearray(out[at : at + size]), dtype=torch.uint8)
            at += size
            got.append(part.view(e.dtype).reshape(e.shape))
            finite = e.double().abs()[e.isfinite()]
            scale = 1 + float(finite.max()) if finite.numel() else 1.0
            bound = TOLERANCE[p["dtype"]] * scale
            wrong = ~torch.isclose(got[-1].double(), e.double(), rtol=0, atol=bound, equal_nan=True)
            assert not wrong.any(), (name, p["sizes"], p["dtype"], got[-1][wrong][:5], e[wrong][:5])
        results.append(got)
    assert at == len(out)
    return results


#: (heads, channels): one lane, a few, a whole warp, several tiles, heads wider than a warp.
SIZES = [(1, 1), (4, 16), (3, 5), (8, 8), (1, 64), (2, 128), (1, 300), (10, 16), (33, 4), (5, 1), (1, 7)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_kernels_match_the_cpu(attention_program: Path, dtype: torch.dtype) -> None:
    problems = []
    for i, (heads, channels) in enumerate(SIZES):
        wide = 8 if dtype.itemsize >= 4 else 0  # with a bias
        for terms in (7, wide + (3 if i % 2 else 4)):
            problems.append(make(dtype, heads, channels, terms=terms, seed=i, dropout=0.3 * (i % 3 == 1)))
        problems.append(make(dtype, heads, channels, offset=1, checked=0, seed=i))
    run(attention_program, problems)


def test_hubs_are_cut(attention_program: Path) -> None:
    cases = [(1, 3), (4, 16), (2, 200), (33, 4)]
    problems = [
        make(torch.float32, h, c, hub=1700, columns=400, rows=5, seed=h, dropout=0.2, terms=15)
        for h, c in cases
    ]
    problems.append(make(torch.float64, 2, 8, hub=1025, columns=2, rows=5))  # hubs of the transpose
    # 8, 9 and 17 chunks: the second pass takes 8 and 16 at a time.
    problems += [make(torch.float32, 1, 4, hub=h, columns=90, rows=5, seed=h) for h in (4096, 4608, 8900)]
    run(attention_program, problems)


def test_loads_do_not_change_bits(attention_program: Path) -> None:
    """16-byte loads and single ones: the same tree."""
    for hub in (0, 1100):
        whole, single = (make(torch.float32, 4, 16, hub=hub, offset=o, seed=3) for o in (0, 1))
        for a, b in zip(*run(attention_program, [whole, single]), strict=True):
            assert np.array_equal(a.numpy(), b.numpy())


def test_bad_offsets_and_indices(attention_program: Path) -> None:
    """Nothing is followed out of bounds; a bad edge makes its row NaN, bad offsets everything."""
    p = make(torch.float32, 4, 16, checked=0)
    p["graph"][1][int(p["graph"][0][3])] = 1000
    p["graph"][4][:] = p["graph"][4].clamp(max=6)
    run(attention_program, [p])
