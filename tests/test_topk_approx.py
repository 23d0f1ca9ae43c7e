"""approx_topk: the recall that its plan promises, the kernels on the host, and on a GPU the whole."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from emulate import HERE, ROOT, compile_program, on_the_host, run
from scipy.stats import hypergeom

from torch_gpuprims import TopK, approx_topk, explain, topk

CASES = [
    (4096, 32, 0.95), (4096, 32, 0.8), (8192, 128, 0.9), (16_384, 1024, 0.95), (131_072, 2048, 0.95),
    (131_072, 2048, 0.99), (100_001, 100, 0.9), (262_144, 4096, 0.95), (5000, 64, 0.9), (32_768, 64, 0.999),
]  # fmt: skip


@pytest.fixture(autouse=True)
def two_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the exact op would be as fast, and be taken."""
    monkeypatch.setenv("GPUPRIMS_APPROX_TOPK_ALGO", "buckets")


def planned(
    n: int, k: int, target: float, dtype: torch.dtype = torch.float32
) -> tuple[int, int, float] | None:
    """(buckets, kept of each, expected recall), or None where the answer is exact."""
    line = explain("approx_topk", torch.empty(1, n, dtype=dtype, device="meta"), k, target)
    match = re.search(r"best (\d) of each of (\d+) buckets, expected recall ([\d.]+)", line)
    if not match:
        assert line.endswith("-> exact")
        return None
    return int(match[2]), int(match[1]), float(match[3])


@pytest.mark.parametrize("n, k, target", CASES)
def test_expected_recall_is_the_formula_and_reaches_the_target(n: int, k: int, target: float) -> None:
    plan = planned(n, k, target)
    assert plan is not None
    buckets, keep, recall = plan
    m = -(-n // buckets)
    r = np.arange(keep + 1, min(m, k) + 1)
    formula = 1 - buckets / k * float(np.sum((r - keep) * hypergeom(n, k, m).pmf(r)))
    assert recall == pytest.approx(formula, abs=1e-4)
    assert recall >= target - 1e-4
    assert k <= buckets * keep <= n / 8


@pytest.mark.parametrize("n, k, target", CASES)
def test_simulated_recall_is_the_expected_one(n: int, k: int, target: float) -> None:
    """Winners at random columns; what a bucket of columns j mod B holds beyond K' is lost."""
    plan = planned(n, k, target)
    assert plan is not None
    buckets, keep, recall = plan
    random, draws = np.random.default_rng(n + k), 200
    kept = []
    for _ in range(draws):
        winners = random.choice(n, k, replace=False, shuffle=False)
        kept.append(np.minimum(np.bincount(winners % buckets, minlength=buckets), keep).sum() / k)
    error = 4 * np.std(kept) / draws**0.5 + 1e-4
    assert np.mean(kept) >= recall - error  # a lower bound where n is no multiple of the buckets
    assert np.mean(kept) <= recall + error + buckets / n


@pytest.mark.parametrize("n, k, target", [(4096, 32, 1.0), (4096, 8, 0.9), (1000, 32, 0.9), (10**7, 100, 0.9),
                                          (4096, 2000, 0.9), (100_000, 5000, 0.9)])  # fmt: skip
def test_exact_where_two_stages_do_not_pay(n: int, k: int, target: float) -> None:
    assert planned(n, k, target) is None


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bool, torch.int64, torch.float64])
def test_exact_for_elements_of_one_and_eight_bytes(dtype: torch.dtype) -> None:
    assert planned(32_768, 1024, 0.9, dtype) is None
    assert planned(32_768, 1024, 0.9, torch.int16) == planned(32_768, 1024, 0.9)


@pytest.mark.parametrize("n, k, buckets", [(32_768, 1024, True), (16_384, 512, True), (4096, 32, False),
                                           (131_072, 2048, False), (32_768, 64, False)])  # fmt: skip
def test_two_stages_where_they_win_and_exact_elsewhere(
    monkeypatch: pytest.MonkeyPatch, n: int, k: int, buckets: bool
) -> None:
    monkeypatch.delenv("GPUPRIMS_APPROX_TOPK_ALGO")
    assert (planned(n, k, 0.9) is not None) == buckets
    monkeypatch.setenv("GPUPRIMS_APPROX_TOPK_ALGO", "exact")
    assert planned(n, k, 0.9) is None


@pytest.mark.parametrize("target", [0.0, -0.5, 1.25, float("nan")])
def test_recall_target_out_of_range(device: str, target: float) -> None:
    message = f"approx_topk: recall_target must be above 0 and at most 1, got {target:g}"
    for x in (torch.randn(3, 5, device=device), torch.randn(3, 5, device="meta"), torch.tensor(1.0)):
        with pytest.raises(RuntimeError) as error:
            approx_topk(x, 1, target)
        assert str(error.value) == message


def test_is_topk_where_exact(device: str) -> None:
    x = torch.randn(4, 60, 5, device=device)
    for dim in (0, 1, 2, -1, -2):
        for largest in (True, False):
            got, want = approx_topk(x, 3, dim=dim, largest=largest), topk(x, 3, dim, largest)
            assert isinstance(got, TopK) and torch.equal(got.indices, want.indices)
            assert torch.equal(got.values, want.values) and got.values.is_contiguous()


def test_other_errors_are_those_of_topk(device: str) -> None:
    x = torch.randn(4, 60, 5, device=device)
    for words, call in {
        "topk: dim must be between -3 and 2, got 3": lambda: approx_topk(x, 3, dim=3),
        "topk: k must be between 0 and 5 (the size of dimension 2), got 6": lambda: approx_topk(x, 6),
        "topk: k must be between 0 and 5 (the size of dimension 2), got -1": lambda: approx_topk(x, -1),
        "topk: input must be a dense tensor, got a sparse layout": lambda: approx_topk(x.to_sparse(), 3),
        "topk: dtype complex64 is not supported": lambda: approx_topk(x.to(torch.complex64), 3),
    }.items():
        with pytest.raises(RuntimeError) as error:
            call()
        assert str(error.value) == words


@pytest.mark.parametrize("kind", ["nan", "-nan", "-inf", "some nan"])
def test_rows_of_nan_give_distinct_indices_in_range(device: str, kind: str) -> None:
    """Where two stages are taken (on a GPU) and where the answer is exact."""
    n, k = 32_768, 1024
    x = torch.randn(3, n, device=device)
    x[:, :: 1 if kind != "some nan" else 50] = float(kind.removeprefix("some "))
    for dtype in (torch.float32, torch.bfloat16):
        for largest in (True, False):
            values, indices = approx_topk(x.to(dtype), k, 0.9, largest=largest)
            assert int(indices.min()) >= 0 and int(indices.max()) < n
            assert all(len(row.unique()) == k for row in indices)
            assert torch.equal(values.isnan(), x.to(dtype).gather(1, indices).isnan())
            if kind == "some nan":
                assert bool(values[:, 0].isnan().all()) == largest


def test_gradients(device: str) -> None:
    x = torch.randperm(24, device=device).double().view(4, 6).requires_grad_()
    for dim in (0, 1):
        assert torch.autograd.gradcheck(lambda t, dim=dim: approx_topk(t, 3, dim=dim).values, x)
        assert torch.autograd.gradgradcheck(lambda t, dim=dim: approx_topk(t, 3, dim=dim).values, x)

    def loss(t: torch.Tensor) -> torch.Tensor:
        return approx_topk(t, 2).values.square().sum()

    (expected,) = torch.autograd.grad(loss(x), x)
    assert torch.equal(torch.func.grad(loss)(x.detach()), expected)
    assert torch.equal(torch.vmap(torch.func.grad(loss))(x.detach()[None]), expected[None])


@on_the_host
def test_kernels_on_the_host(tmp_path: Path) -> None:
    """A fiber a thread, under AddressSanitizer: each bucket's best, and the recall over 40 seeds."""
    text = (ROOT / "csrc/topk/approx.cu").read_text()
    assert "#include <cuda_runtime.h>\n" in text
    main = tmp_path / "main.cpp"
    main.write_text(
        text.replace("#include <cuda_runtime.h>\n", "") + f'#include "{HERE}/emulator/approx.cpp"\n'
    )
    program = compile_program(tmp_path / "emulated_approx", [main])
    buckets, keep, expected, mean = map(float, run(program, 1).split())
    assert (buckets, keep) == planned(8192, 128, 0.95)[:2]  # type: ignore[index]
    assert abs(mean - expected) < 0.012  # 40 rows of 128 winners


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")
class TestOnCuda:
    @pytest.mark.parametrize("n, k, target", CASES)
    def test_recall_over_seeds(self, n, k, target):
        recalls = []
        for seed in range(20):
            x = torch.randn(4, n, device="cuda", generator=torch.Generator("cuda").manual_seed(seed))
            values, indices = approx_topk(x, k, target)
            exact = topk(x, k)
            assert torch.equal(x.gather(1, indices), values)
            assert bool((values[:, 1:] <= values[:, :-1]).all()) and torch.equal(
                values[:, 0], exact.values[:, 0]
            )
            found = torch.zeros(4, n, dtype=torch.int32, device="cuda")
            found.scatter_add_(1, indices, torch.ones_like(indices, dtype=torch.int32))
            assert int(found.max()) == 1  # no index twice
            recalls.append(found.gather(1, exact.indices).float().mean().item())
        error = 4 * np.std(recalls) / len(recalls) ** 0.5 + 1e-3
        assert np.mean(recalls) >= target - error

    @pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.uint8])
    def test_exact_for_other_widths(self, dtype):
        x = torch.randn(3, 20_001, device="cuda").mul(60).to(dtype)
        assert torch.equal(approx_topk(x, 256, 0.9).indices, topk(x, 256).indices)

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int16, torch.int32])
    def test_two_stages_of_both_widths_as_by_pytorch(self, dtype):
        n, k = 20_001, 256
        buckets, keep, _ = planned(n, k, 0.9, dtype)
        for largest in (True, False):
            x = torch.randn(3, n, device="cuda").mul(60).to(dtype)
            padded = torch.nn.functional.pad(x.double(), (0, -n % buckets), value=torch.nan)
            padded = padded.nan_to_num(-torch.inf if largest else torch.inf).view(3, -1, buckets)
            best = padded.topk(keep, dim=1, largest=largest).values.flatten(1)
            want = best.topk(k, largest=largest).values.to(dtype)
            got = approx_topk(x, k, 0.9, largest=largest)
            assert torch.equal(got.values, want)
            assert torch.equal(x.gather(1, got.indices), want)
            again = approx_topk(x[1:2], k, 0.9, largest=largest)  # a row's answer is its own
            assert torch.equal(again.indices, got.indices[1:2])

    def test_gradient_dim_and_graph(self):
        x = torch.randn(8192, 3, device="cuda", requires_grad=True)
        values, indices = approx_topk(x, 64, 0.9, dim=0)
        values.sum().backward()
        assert torch.equal(x.grad, torch.zeros_like(x).scatter(0, indices, 1.0))
        static = torch.randn(16, 8192, device="cuda")
        approx_topk(static, 64)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = approx_topk(static, 64)
        for _ in range(3):
            static.normal_()
            graph.replay()
            assert torch.equal(captured.indices, approx_topk(static, 64).indices)


def test_sharded_rows(two_ranks) -> None:
    distributed, mesh = two_ranks
    x = torch.randn(4, 600)
    rows = distributed.DTensor.from_local(x[:2], mesh, [distributed.Shard(0)])
    values, indices = approx_topk(rows, 20)
    assert values.placements == indices.placements == (distributed.Shard(0),)
    assert torch.equal(indices.to_local(), approx_topk(x[:2], 20).indices)
