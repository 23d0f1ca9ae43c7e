"""explain and GPUPRIMS_LOG: one line a call, from the plan, with or without a GPU."""

import os
import subprocess
import sys

import pytest
import torch

import torch_gpuprims
from torch_gpuprims import Graph, Segments, explain


@pytest.mark.parametrize(
    "shape, k, words",
    [
        ((16384, 256), 8, "-> lanes, 16 lanes a row"),
        ((1024, 32768), 64, "block_row"),
        ((1, 1_000_000), 20, "part_row"),
        ((1, 1_000_001), 20, "split_row"),
        ((1, 100_000), 50_000, "radix, the best k selected"),
        ((5, 0), 0, "nothing to launch"),
    ],
)
def test_topk_names_the_algorithm(shape: tuple[int, int], k: int, words: str) -> None:
    line = explain("topk", torch.empty(shape, device="meta"), k)
    assert line.startswith(f"topk float32 [{shape[0]}, {shape[1]}] k={k} -> ") and words in line


def test_topk_states_workspace_within_its_bound() -> None:
    for n, k in ((10**6, 20), (10**8, 2048), (10**8, 4096)):
        line = explain("topk", torch.empty(1, n, device="meta"), k)
        workspace = float(line.split("workspace ")[1].split(" MB")[0]) * 1e6
        assert workspace <= 0.05 * 4 * n + (16 << 20), line


FLOATS = torch.empty(16384, 256)


@pytest.mark.parametrize(
    "call, words",
    [
        ((FLOATS, 8), "-> lanes"),
        ((FLOATS, 8, -1, False), "-> thread_row"),
        ((FLOATS.to(torch.int32), 8), "-> thread_row"),
        ((torch.empty(16384, 257)[:, 1:], 8), "-> thread_row"),  # rows at any address
        ((torch.empty(16384, 260)[:, 4:], 8), "-> lanes"),
        ((torch.empty(16384 * 256 + 1)[1:].view(16384, 256), 8), "-> thread_row"),
        ((torch.empty(256, 16384), 8, 0), "-> thread_row"),
        ((torch.empty(16384, 256).T, 8, 0), "-> thread_row"),  # what follows dim is more of rows
        ((torch.empty(16384, 1, 256).transpose(0, 1), 8), "-> lanes"),
        ((torch.empty(100, 10_000, device="meta"), 10), "-> cluster_row"),
        ((torch.empty(100, 10_000, device="meta"), 10, -1, False), "-> block_row"),
    ],
)
def test_topk_names_what_the_call_can_take(call: tuple, words: str) -> None:
    assert words in explain("topk", *call)


@pytest.mark.parametrize(
    "x, dim, copied",
    [
        (torch.empty(512, 4096), 0, 1),
        (torch.empty(4096, 512).T, 0, 0),
        (torch.empty(4096, 1024)[:, ::2], -1, 1),
        (torch.empty(4096, 1024)[:, :512], -1, 0),  # rows may lie apart
        (torch.empty(512, 1, 4096), 1, 0),
        (torch.empty(8, 512, 512), 1, 1),
        (torch.empty(8, 512, 512).transpose(0, 1), -1, 1),  # no one stride describes the rows
    ],
)
def test_topk_states_the_copy_of_rows(x: torch.Tensor, dim: int, copied: int) -> None:
    k = min(5, x.shape[dim])

    def stated(line: str) -> tuple[float, ...]:
        assert ("rows copied first" in line) == (copied == 1 and line is not plain)
        return tuple(float(line.split(word)[1].split(" MB")[0]) * 1e6 for word in ("workspace ", "moves "))

    ours = explain("topk", x, k, dim, index_dtype=torch.int32)
    plain = explain("topk", x.movedim(dim, -1).contiguous(), k, index_dtype=torch.int32)
    more = [a - b for a, b in zip(stated(ours), stated(plain), strict=True)]
    assert more == pytest.approx([copied * x.nbytes, 2 * copied * x.nbytes], abs=2000)


def test_topk_states_other_copies() -> None:
    rows = torch.empty(100, 2000)
    assert "copied" not in explain("topk", rows[:, :1000], 20)
    assert "rows copied first" in explain("topk", rows[:, :500], 400)  # radix sorts rows whole
    x, mask = torch.empty(4, 8, 2000), torch.ones(8, 4, 2000, dtype=torch.bool)
    assert "copied" not in explain("topk", x, 5, mask=mask[0, 0])
    assert "copied" not in explain("topk", x, 5, mask=mask.view(4, 8, 2000))
    assert "rows copied first" in explain("topk", x, 5, mask=mask.transpose(0, 1))  # of the mask alone


def test_topk_refuses_what_the_op_refuses() -> None:
    x = torch.empty(3, 4)
    for call, words in {
        (x, 5): "topk: k must be between 0 and 4 (the size of dimension 1), got 5",
        (x, 1, 2): "topk: dim must be between -2 and 1, got 2",
        (x.to(torch.complex64), 1): "topk: dtype complex64 is not supported",
    }.items():
        for op in ("topk", "approx_topk"):
            args = call if op == "topk" else (*call[:2], 0.9, *call[2:])
            with pytest.raises(RuntimeError) as error:
                explain(op, *args)
            assert str(error.value) == words
    offsets = torch.tensor([0, 3])
    for op, *args in (("topk_gate", x[0].cfloat(), 1), ("segment_topk", x[0].cfloat(), offsets, 1)):
        with pytest.raises(RuntimeError, match=f"{op}: dtype complex64 is not supported"):
            explain(op, *args)
    assert "k=1" in explain("topk", x[0, 0], 0)


def test_log_of_topk_is_of_its_arguments(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch_gpuprims._explain, "enabled", True)
    caplog.set_level("INFO", "torch_gpuprims")
    torch_gpuprims.topk(FLOATS[:8192], 8, largest=False)
    torch_gpuprims.topk(FLOATS[:8192], 8)
    assert ["lanes, " in record.message for record in caplog.records] == [False, True]
    x = torch.randn(3, 8)
    torch.vmap(lambda t: tuple(torch_gpuprims.topk(t, 2, mask=t > 0)))(x)
    torch.func.jvp(lambda t: torch_gpuprims.topk(t, 2).values, (x,), (x,))
    torch.func.grad(lambda t: torch_gpuprims.topk(t, 2, 0).values.sum())(x)
    assert len(caplog.records) == 5


def test_segment_topk_names_its_lists_and_workspace() -> None:
    x, offsets = torch.empty(10**8, device="meta"), torch.zeros(1001, dtype=torch.int64, device="meta")
    line = explain("segment_topk", x, offsets, 20)
    assert line.startswith(
        "segment_topk float32 [100000000] in 1000 segments k=20 -> offsets looked at, a warp"
    )
    assert "long ones cut in chunks of" in line
    assert float(line.split("workspace ")[1].split(" MB")[0]) * 1e6 <= 0.05 * 4e8 + (16 << 20)
    short = Segments(torch.arange(0, 1001, 10))
    line = explain("segment_topk", torch.empty(1000), short, 5)
    assert "-> a warp for 1 segments, workspace 0.000 MB" in line
    assert "looked at" in explain("segment_topk", torch.empty(1000), short, short.indptr[1:], max_k=5)
    assert (
        explain("segment_topk", torch.empty(1000), short, 0).split(" -> ")[1].startswith("nothing to launch")
    )


@pytest.mark.parametrize(
    "shape, dtype, words",
    [
        ((10_000, 64), torch.float32, "warp_row, 2 lanes a row, 32 elements a lane"),
        ((1000, 64), torch.float32, "warp_row, 8 lanes a row, 8 elements a lane"),
        ((1000, 5), torch.int64, "warp_row, 1 lane a row, 8 elements a lane"),
        ((1000, 1025), torch.float32, "block_row, 16 elements a thread"),
        ((100_000_000,), torch.float32, "at most 4 passes, key and index in 64 bits"),
        ((100_000_000,), torch.int64, "at most 8 passes, 32-bit index beside the key"),
        ((5, 0), torch.uint8, "nothing to launch"),
    ],
)
def test_sort_names_the_algorithm(shape: tuple[int, ...], dtype: torch.dtype, words: str) -> None:
    line = explain("sort", torch.empty(shape, dtype=dtype, device="meta"))
    assert words in line and "keys alone" not in line
    if shape[0] == 100_000_000:
        workspace = float(line.split("workspace ")[1].split(" MB")[0]) * 1e6
        assert workspace <= 1.05 * shape[0] * (8 if dtype == torch.float32 else 12)
        assert "keys alone" in explain("sort_keys", torch.empty(shape, dtype=dtype, device="meta"))


def test_segment_sort_names_its_kernels_and_workspace() -> None:
    x, offsets = torch.empty(10**8, device="meta"), torch.zeros(1001, dtype=torch.int64, device="meta")
    line = explain("segment_sort", x, offsets)
    assert line.startswith("segment_sort float32 [100000000] in 1000 segments -> a warp for segments of")
    assert "at most 4 passes for longer ones" in line
    assert float(line.split("workspace ")[1].split(" MB")[0]) * 1e6 <= 1.05 * 8e8
    line = explain("segment_sort", torch.empty(1000), Segments(torch.arange(0, 1001, 10)))
    assert " in 100 segments " in line and "passes" not in line and "this input is on cpu" in line
    assert "nothing to launch" in explain("segment_sort", torch.empty(0), torch.zeros(3, dtype=torch.int32))


def test_sort_by_key_is_a_sort_and_gathers() -> None:
    line = explain("sort_by_key", torch.empty(1000, device="meta"), torch.empty(1000, device="meta"))
    assert line.startswith("sort_by_key: sort float32 [1, 1000] -> warp_row") and "a gather for each" in line
    assert "argsort" in explain("sort_by_key", torch.empty(9, dtype=torch.int32), end_bit=8)
    keys = torch.empty(10**7, dtype=torch.int64, device="meta")
    assert "codes or at most 8 passes" in explain("sort_by_key", keys)
    line = explain("sort_by_key", keys, end_bit=8)
    assert "codes" not in line and "at most 1 pass," in line
    assert "at most 2 passes" in explain("argsort", keys, begin_bit=20, end_bit=33)


def test_sort_keys_in_place_needs_no_result() -> None:
    x = torch.empty(3, 10**7, dtype=torch.int64, device="meta")
    there, new = (explain("sort_keys", x, inplace=inplace) for inplace in (True, False))
    assert "codes" in new and "codes" not in there
    assert explain("sort_keys", x, 0, inplace=True) == explain("sort_keys", x, 0)  # which takes a copy


def test_sort_refuses_what_the_call_refuses() -> None:
    x = torch.empty(3, 4, device="meta")
    for op in ("sort", "argsort", "sort_keys"):
        with pytest.raises(RuntimeError, match=f"^{op}: dim must be between -2 and 1, got 5$"):
            explain(op, x, 5)
    with pytest.raises(RuntimeError, match=r"^sort: dtype complex64 is not supported$"):
        explain("sort", x.to(torch.complex64))
    with pytest.raises(RuntimeError, match=r"^sort_by_key: begin_bit and end_bit must satisfy"):
        explain("sort_by_key", x[0], end_bit=40)
    assert "sort float32 [1, 1] -> warp_row" in explain("sort", x[0, 0])


@pytest.mark.parametrize(
    "variable, op, there, gone",
    [
        ("GPUPRIMS_SORT_CODES=0", "sort_keys", "at most 8 passes", "codes"),
        ("GPUPRIMS_SORT_CODES=9", "sort_keys", "2 by 9-bit codes", "13-bit"),
        ("GPUPRIMS_SORT_ALGO=sweep", "sort", "sweep", "warp_row"),
    ],
)
def test_sort_goes_as_the_environment_says(variable: str, op: str, there: str, gone: str) -> None:
    shape = "10**7, dtype=torch.int64" if op == "sort_keys" else "9"
    code = f"""if True:
        import os, torch, torch_gpuprims as g
        os.environ.clear()  # what counts was read at import
        print(g.explain("{op}", torch.empty({shape}, device="meta")))"""
    env = {**os.environ, variable.split("=")[0]: variable.split("=")[1]}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert there in done.stdout and gone not in done.stdout


def test_aggregate_says_what_is_cut() -> None:
    hub = torch.stack([torch.arange(3000) % 7, torch.zeros(3000, dtype=torch.long)])
    line = explain("neighbor_aggregate", torch.empty(7, 64), Graph.from_coo(hub, num_nodes=7))
    assert "16-byte loads" in line and "rows from 1024 edges cut every 512" in line
    few = Graph.from_coo(torch.tensor([[0, 1], [1, 0]]), num_nodes=2)
    assert "no row cut" in explain("neighbor_aggregate", torch.empty(2, 3), few)


@pytest.mark.parametrize(
    "features, weighted, reduce, words",
    [
        (1, False, "sum", "] sum -> narrow, 4-byte loads"),
        (1, True, "sum", "] weighted sum -> row_stream, 4-byte loads"),
        (64, False, "mean", "] mean -> vector_stream, 16-byte loads"),
        (64, True, "sum", "] weighted sum -> row_stream, 16-byte loads"),
        (64, False, "max", "] max -> row_stream, 16-byte loads"),
        (17, False, "sum", "] sum -> row_stream, 4-byte loads"),
    ],
)
def test_aggregate_names_the_kernel_of_the_call(
    features: int, weighted: bool, reduce: str, words: str
) -> None:
    ends = torch.stack([torch.arange(400_000) % 20_000, torch.arange(400_000) // 20])  # not a small graph
    graph, weight = Graph.from_coo(ends, 20_000), torch.ones(400_000) if weighted else None
    assert words in explain("neighbor_aggregate", torch.empty(20_000, features), graph, weight, reduce)
    wide = explain("neighbor_aggregate", torch.empty(20_000, 2, features), graph, torch.ones(400_000, 2))
    assert wide.endswith("; 2 times, a head each") and "weighted sum" in wide
    odd = torch.empty(20_000 * 64 + 1)[1:].view(
        20_000, 64
    )  # at an address that vectors cannot be loaded from
    assert "sum -> row_stream, 4-byte loads" in explain("neighbor_aggregate", odd, graph)


@pytest.mark.parametrize(
    "degree, features, dtype, threads",  # 16 warps with 16 edges in flight, else 24 with 8
    [
        (32, 128, torch.float32, 512),
        (32, 256, torch.float32, 512),
        (31, 128, torch.float32, 768),  # less than two batches a row
        (32, 64, torch.float32, 768),  # two rows a warp
        (32, 256, torch.bfloat16, 768),
    ],
)
def test_aggregate_has_more_edges_in_flight_where_rows_fill_warps_in_an_order(
    degree: int, features: int, dtype: torch.dtype, threads: int
) -> None:
    rows = 60_000
    indices = torch.arange(rows * degree) % rows
    graph = Graph.from_csr(torch.arange(rows + 1) * degree, indices)
    x = torch.empty(rows, features, dtype=dtype)
    ordered = graph.reorder(order=torch.arange(rows).flip(0))
    assert f" x {threads} threads, rows in schedule order" in explain("neighbor_aggregate", x, ordered)
    assert " x 128 threads, rows as given" in explain("neighbor_aggregate", x, graph)


def test_aggregate_names_the_kernel_of_small_graphs() -> None:
    assert "sum -> aggregate_small" in explain("neighbor_aggregate", torch.empty(3, 64), GRAPH)
    assert "max -> row_stream" in explain("neighbor_aggregate", torch.empty(3, 64), GRAPH, reduce="max")


def test_scores_of_edges_are_explained() -> None:
    x, hub = torch.empty(3, 2, 8), Graph.from_coo(torch.zeros(2, 600, dtype=torch.int64), 3)
    line = explain("edge_softmax", GRAPH, torch.empty(3, 2))
    assert line.startswith("edge_softmax float32 [3 rows, 3 edges, 2 heads] -> softmax_rows, a warp a row")
    assert "rows from 512 edges to" in explain("edge_softmax", hub, torch.empty(600))
    line = explain("gatv2_score", x, x, torch.empty(2, 8), GRAPH)
    assert line.startswith("gatv2_score float32 [3 rows, 3 edges, 2 heads, 8 channels] -> gatv2_rows")
    assert "16-byte loads, no row cut" in line
    line = explain("sddmm", torch.empty(3, 64), torch.empty(3, 64), GRAPH)
    assert "sddmm float32 [3 rows, 3 edges, 64 features] -> sddmm_edges, 16-byte loads, 128 edges" in line


def test_unknown_op() -> None:
    with pytest.raises(ValueError, match="no op named 'bogus'; there are approx_topk, argsort, "):
        explain("bogus", torch.empty(3))


CALLS = {
    "topk": lambda x: torch_gpuprims.topk(x, 2),
    "topk with a mask": lambda x: torch_gpuprims.topk(x, 2, mask=x > 0),
    "approx_topk": lambda x: torch_gpuprims.approx_topk(x, 2),
    "topk_gate": lambda x: torch_gpuprims.topk_gate(x, 2),
    "segment_topk": lambda x: torch_gpuprims.segment_topk(x[0], torch.tensor([0, 3, 8]), 2),
    "sort": lambda x: torch_gpuprims.sort(x),
    "argsort": lambda x: torch_gpuprims.argsort(x),
    "sort_keys": lambda x: torch_gpuprims.sort_keys(x),
    "sort_keys in place": lambda x: torch_gpuprims.sort_keys(x.clone(), inplace=True),
    "sort_by_key": lambda x: torch_gpuprims.sort_by_key(x[0].int(), x[1], end_bit=8),
    "segment_sort": lambda x: torch_gpuprims.segment_sort(x[0], torch.tensor([0, 3, 8]))[:2],
    "neighbor_aggregate": lambda x: torch_gpuprims.neighbor_aggregate(x, GRAPH),
}
GRAPH = Graph.from_coo(torch.tensor([[0, 1, 2], [1, 2, 0]]), num_nodes=3)


@pytest.mark.parametrize("name", CALLS)
def test_log_is_silent_while_tracing(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch_gpuprims._explain, "enabled", True)
    caplog.set_level("INFO", "torch_gpuprims")
    x = torch.randn(3, 8)
    want = CALLS[name](x)
    assert [record.message.split()[0].rstrip(":") for record in caplog.records] == [name.split()[0]]
    got = torch.compile(CALLS[name], fullgraph=True, backend="aot_eager")(x)
    assert len(caplog.records) == 1
    for ours, theirs in zip(got, want, strict=True):
        assert torch.equal(ours, theirs)


def test_log_leaves_errors_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_gpuprims._explain, "enabled", True)
    with pytest.raises(RuntimeError, match="topk: dim must be between -2 and 1, got 5"):
        torch_gpuprims.topk(torch.randn(3, 8), 2, dim=5)
    with pytest.raises(RuntimeError, match="sort: dim must be between -2 and 1, got 5"):
        torch_gpuprims.sort(torch.randn(3, 8), dim=5)


def test_log_and_forced_algorithm_by_environment() -> None:
    code = "import torch, torch_gpuprims as g; g.topk(torch.arange(5000.0), 2)"
    env = {**os.environ, "GPUPRIMS_LOG": "1", "GPUPRIMS_TOPK_ALGO": "sort"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert "topk float32 [1, 5000] k=2 -> sort" in done.stderr
    assert not torch_gpuprims._explain.enabled


def test_neighbor_attention_names_lanes_and_hubs() -> None:
    indptr = torch.tensor([0, 2000, 2003])
    graph = Graph.from_csr(indptr, torch.zeros(2003, dtype=torch.int64), num_src=2)
    line = explain("neighbor_attention", torch.empty(2, 4, 16), graph)
    assert line.startswith(
        "neighbor_attention float32 [2 rows, 2003 edges, 4 heads, 16 channels] -> stream, 2 lanes a head, "
        "runs of 16 by 4 groups a warp, 16-byte loads, 1 tiles"
    )
    assert "rows from 512 edges cut every 256" in line
    assert "2-byte loads" in explain("neighbor_attention", torch.empty(2, 3, 7).half(), graph)
