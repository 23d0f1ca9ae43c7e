"""topk on a GPU, k large, rows short or few: `radix`, `lanes` and `cluster_row` beside a stable sort."""

import pytest
import torch

from bench.topk_data import fill
from torch_gpuprims import explain, topk

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU"),
]

#: (rows, n, k): filtered by many blocks a row and by one, whole rows, rows in shared memory and in registers.
LARGE = [
    (1, 1_000_003, 4097), (3, 300_001, 100_000), (700, 9001, 4500), (1, 2_000_000, 1_999_999),
    (5, 20_000, 20_000), (2, 8192, 8000), (9, 5000, 4999), (1000, 257, 128), (4096, 100, 64), (5000, 32, 31),
    (1, 100_000, 4096),
    (40, 30_000, 4096),
]  # fmt: skip
DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.int32, torch.uint8]


def data(kind: str, rows: int, n: int, dtype: torch.dtype) -> torch.Tensor:
    g = torch.Generator("cuda").manual_seed(n + rows)
    if kind == "equal":
        return torch.ones(rows, n, device="cuda", dtype=dtype)
    if kind == "few":
        return torch.randint(0, 5, (rows, n), device="cuda", generator=g).to(dtype)
    x = torch.randn(rows, n, device="cuda", generator=g) * 50
    if kind == "special" and dtype.is_floating_point:
        x[:, ::7] = torch.nan
        x[:, 1::7] = -torch.inf
        x[:, 2::5] = 0.0
        x[:, 3::5] = -0.0
    return x.to(dtype)


def same(x: torch.Tensor, k: int, largest: bool, **options) -> None:
    """Values and indices are the first k of a stable sort; the bits are those of the input."""
    values, indices = topk(x, k, largest=largest, **options)
    key = x
    if x.dtype.is_floating_point:  # one zero, and NaN above all: no other infinity is positive here
        key = torch.where(x.isnan(), torch.inf, x.double() if x.dtype is torch.float64 else x.float()) + 0.0
    want = torch.sort(key, dim=-1, descending=largest, stable=True).indices[..., :k]
    assert torch.equal(indices.long(), want)
    assert torch.equal(values.view(torch.uint8), x.gather(-1, want).contiguous().view(torch.uint8))


@pytest.mark.parametrize("rows, n, k", LARGE)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_large_k(rows: int, n: int, k: int, dtype: torch.dtype) -> None:
    for kind in ("normal", "few", "equal", "special"):
        x = data(kind, rows, n, dtype)
        same(x, k, True)
        same(x, k, False, index_dtype=torch.int32)
        again = topk(x, k)
        assert torch.equal(again.indices, topk(x, k).indices)


def test_the_shapes_above_take_every_way() -> None:
    words = [explain("topk", torch.empty(rows, n, device="meta"), k) for rows, n, k in LARGE]
    assert any("the best k selected" in text for text in words)
    assert any("rows sorted whole" in text for text in words)


def test_large_k_of_strided_rows_and_other_dims() -> None:
    base = torch.randn(6, 30_000, device="cuda")
    rows = base[:, 100:20_100]
    for k in (5000, 15_000, 20_000):
        same(rows, k, True)
    x = torch.randn(3, 12_000, 4, device="cuda")
    for k in (4500, 7000, 12_000):
        values, indices = topk(x, k, dim=1)
        want = torch.sort(x, dim=1, descending=True, stable=True)
        assert torch.equal(values, want.values[:, :k]) and torch.equal(indices, want.indices[:, :k])
    x = torch.randn(50, 40, 300, device="cuda")
    values, indices = topk(x, 30, dim=1)
    want = torch.sort(x, dim=1, descending=True, stable=True)
    assert torch.equal(values, want.values[:, :30]) and torch.equal(indices, want.indices[:, :30])


def test_large_k_in_a_graph_with_new_data() -> None:
    x = torch.randn(2, 100_000, device="cuda")
    topk(x, 5000)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = topk(x, 5000)
    for _ in range(3):
        x.normal_()
        graph.replay()
        assert torch.equal(out.indices, torch.sort(x, descending=True, stable=True).indices[:, :5000])


def same_for_every_kind(rows: int, n: int, k: int, dtype: torch.dtype) -> None:
    for kind in ("normal", "few", "equal", "special"):
        x = data(kind, rows, n, dtype)
        same(x, k, True)
        same(x, k, True, index_dtype=torch.int32)
    same(torch.full((rows, n), -torch.inf, device="cuda", dtype=dtype), k, True)
    same(torch.full((rows, n), torch.nan, device="cuda", dtype=dtype), k, True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "rows, n, k", [(3000, 256, 8), (5, 128, 8), (77, 512, 24), (700, 128, 12), (2000, 136, 1)]
)
def test_short_rows_of_floats(rows: int, n: int, k: int, dtype: torch.dtype) -> None:
    assert " lanes" in explain("topk", torch.empty(rows, n, dtype=dtype, device="cuda"), k)
    same_for_every_kind(rows, n, k, dtype)
    wide = data("normal", rows, n + 8, dtype)
    same(wide[:, 8:], k, True)  # rows apart, aligned or not
    same(wide[:, 1 : n + 1], k, True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", ["hidden", "shown", "sorted", "reversed", "outliers"])
def test_many_rows_against_the_sampler(kind: str, dtype: torch.dtype) -> None:
    x = torch.empty(300, 32_768, device="cuda", dtype=dtype)
    fill(x, kind)
    for k in (64, 700, 1000):
        same(x, k, True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "rows, n, k", [(100, 10_000, 10), (3, 16_384, 96), (16, 32_768, 64), (5, 65_536, 50), (1, 262_144, 20)]
)
def test_few_rows_of_floats(rows: int, n: int, k: int, dtype: torch.dtype) -> None:
    assert "cluster_row" in explain("topk", torch.empty(rows, n, dtype=dtype, device="cuda"), k)
    same_for_every_kind(rows, n, k, dtype)
    # All the best in one group of threads: they are more than there is room for.
    vector = 16 // torch.empty(0, dtype=dtype).element_size()
    x = data("normal", rows, n, dtype)
    x.view(rows, -1, vector)[:, ::64] += 1000
    same(x, k, True)
    wide = data("normal", rows, n + 8, dtype)
    same(wide[:, 8:], k, True)  # rows apart
