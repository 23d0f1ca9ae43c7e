"""overlapped and aggregate_out_of_core: order, bits, errors, memory bounds."""

import pytest
import torch
from devices import DEVICES, no_cuda

from torch_gpuprims import (
    Graph,
    aggregate_out_of_core,
    neighbor_aggregate,
    overlapped,
    reorder_out_of_core,
)


def data(device: str, n: int = 1 << 14) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(1)
    return torch.randn(n, 8, generator=g).to(device), torch.randint(n, (5 * n,), generator=g).to(device)


@pytest.mark.parametrize("streams", [1, 2, 4])
@pytest.mark.parametrize("count", [0, 1, 3, 11])
def test_equals_the_sequential_run(device: str, streams: int, count: int) -> None:
    a, b = data(device)
    chunks = list(b.chunk(count)) if count else []

    def reorder(index: torch.Tensor) -> torch.Tensor:
        return a[index] * 2

    def compute(block: torch.Tensor) -> torch.Tensor:
        return block.cumsum(0)[-1]

    expected = [compute(reorder(chunk)) for chunk in chunks]
    for _ in range(3):
        found = overlapped(chunks, reorder, compute, streams)
        assert len(found) == len(expected)
        assert all(torch.equal(x, y) for x, y in zip(found, expected, strict=True))


def test_generator_and_blocks_as_results(device: str) -> None:
    """Chunks made while the pipeline runs; results that are views of their blocks outlive them."""
    a, b = data(device)

    def chunks():
        for part in b.chunk(9):
            yield part + 0

    found = overlapped(chunks(), lambda index: (a[index], index), lambda block: block[0][1:], 3)
    noise = [torch.full_like(x, torch.nan) for x in found]  # takes the memory of whatever was freed
    expected = [a[part][1:] for part in b.chunk(9)]
    assert all(torch.equal(x, y) for x, y in zip(found, expected, strict=True))
    del noise


@pytest.mark.parametrize("where", ["chunk", "reorder", "compute"])
def test_errors_are_raised_after_the_others_are_done(device: str, where: str) -> None:
    a, b = data(device)
    done: list[int] = []

    def chunks():
        for i, part in enumerate(b.chunk(8)):
            if where == "chunk" and i == 5:
                raise KeyError("number 5")
            yield i, part

    def reorder(chunk):
        if where == "reorder" and chunk[0] == 5:
            raise KeyError("number 5")
        return chunk[0], a[chunk[1]]

    def compute(block):
        if where == "compute" and block[0] == 5:
            raise KeyError("number 5")
        block[1].sum()
        done.append(block[0])

    with pytest.raises(KeyError, match="number 5"):
        overlapped(chunks(), reorder, compute, 4, device=device)
    assert done == [0, 1, 2, 3, 4]
    # Nothing is left behind: the next call works.
    assert overlapped([1, 2], lambda i: i, lambda i: i + 1, device=device) == [2, 3]


def test_bad_streams() -> None:
    with pytest.raises(ValueError, match="overlapped: streams must be an int >= 1, got 0"):
        overlapped([1], lambda i: i, lambda i: i, 0)


@pytest.mark.gpu
@no_cuda
def test_waits_for_the_callers_stream_and_the_other_way_round() -> None:
    """A slow producer before and a consumer after, without a synchronisation."""
    a, b = data("cuda")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    for _ in range(5):
        with torch.cuda.stream(stream):
            source = torch.zeros_like(a)
            torch.cuda._sleep(20_000_000)
            source.copy_(a)
            found = overlapped(b.chunk(8), lambda i, source=source: source[i], lambda x: x.sum(0), 4)
            source.fill_(torch.nan)
            total = torch.stack(found)
        stream.synchronize()
        assert torch.equal(total, torch.stack([a[i].sum(0) for i in b.chunk(8)]))


@pytest.mark.gpu
@no_cuda
def test_blocks_in_flight_are_bounded() -> None:
    """The host runs ahead of a slow device: memory stays that of `streams` blocks."""
    size, streams = 1 << 20, 3
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()

    def compute(block: torch.Tensor) -> int:
        torch.cuda._sleep(2_000_000)
        block.add_(1)
        return 0

    overlapped(
        range(40), lambda i: torch.full((size,), i, device="cuda", dtype=torch.uint8), compute, streams
    )
    assert torch.cuda.max_memory_allocated() - before <= (streams + 1) * size
    torch.cuda.synchronize()


# Out of core ------------------------------------------------------------------------------


def random_graph(device: str, hub: int = 0, seed: int = 0) -> Graph:
    g = torch.Generator().manual_seed(seed)
    src, dst = torch.randint(700, (2, 6000), generator=g)
    if hub:
        dst[:hub] = 3
    return Graph.from_coo(torch.stack([src, dst % 500]).to(device), num_src=700, num_dst=500)


@pytest.mark.parametrize("reduce", ["sum", "mean", "max"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("weighted", [False, True])
def test_out_of_core_has_the_same_bits(device: str, reduce: str, dtype: torch.dtype, weighted: bool) -> None:
    graph = random_graph(device, hub=1500)
    g = torch.Generator().manual_seed(2)
    x = torch.randn(700, 24, generator=g).to(dtype)
    weight = torch.randn(graph.num_edges, generator=g).to(dtype).to(device) if weighted else None
    expected = neighbor_aggregate(x.to(device), graph, weight, reduce).cpu()
    row = 24 * x.element_size()
    for budget, streams in ((3 * 800 * row + 3 * 40000, 2), (4 * 2000 * row + 400000, 3)):
        found = aggregate_out_of_core(
            x, graph, weight, reduce, budget_bytes=budget, streams=streams, device=device
        )
        assert torch.equal(found, expected)
    assert max(map(len, reorder_out_of_core._kept[graph].values())) > 1


@pytest.mark.parametrize("place", DEVICES)
def test_out_of_core_graph_on_the_host(place: str) -> None:
    graph = random_graph("cpu")
    x = torch.randn(700, 16)
    found = aggregate_out_of_core(x, graph, budget_bytes=120_000, device=place)
    assert torch.equal(found, neighbor_aggregate(x.to(place), graph.to(place)).cpu())
    assert torch.equal(aggregate_out_of_core(x, graph, budget_bytes=120_000, device=place), found)


def test_out_of_core_runs_of_rows_are_copied_as_they_lie(device: str) -> None:
    """A band graph: each range reads a run of rows, so nothing is gathered."""
    n = 1000
    dst = torch.arange(n).repeat_interleave(3)
    src = (dst + torch.tensor([-1, 0, 1]).repeat(n)).clamp(0, n - 1)
    graph = Graph.from_coo(torch.stack([src, dst]).to(device), n)
    x = torch.randn(n, 4)
    found = aggregate_out_of_core(x, graph, budget_bytes=3 * 16 * 200 + 20_000, device=device)
    assert torch.equal(found, neighbor_aggregate(x.to(device), graph).cpu())
    (parts,) = reorder_out_of_core._kept[graph].values()
    assert len(parts) > 2
    assert all(part.needed is None for part in parts)


def test_out_of_core_follows_a_schedule(device: str) -> None:
    graph = random_graph(device, hub=1200)
    order = torch.randperm(500, generator=torch.Generator().manual_seed(5)).to(device)
    scheduled = graph.reorder(order=order)
    x, weight = torch.randn(700, 8), torch.randn(graph.num_edges).to(device)
    found = aggregate_out_of_core(x, scheduled, weight, budget_bytes=150_000, device=device)
    assert torch.equal(found, neighbor_aggregate(x.to(device), graph, weight).cpu())


def test_out_of_core_empty_rows_and_no_edges(device: str) -> None:
    graph = Graph.from_coo(torch.zeros(2, 0, dtype=torch.long, device=device), 50)
    assert torch.equal(aggregate_out_of_core(torch.randn(50, 3), graph, budget_bytes=500), torch.zeros(50, 3))


def test_out_of_core_errors() -> None:
    graph, x = random_graph("cpu"), torch.randn(700, 16)
    with pytest.raises(RuntimeError, match=r"budget_bytes must be at least \d+ for destination \d+ with"):
        aggregate_out_of_core(x, graph, budget_bytes=300, device="cpu")
    with pytest.raises(RuntimeError, match="at least 700 rows"):
        aggregate_out_of_core(x[:10], graph, budget_bytes=1 << 20, device="cpu")
    with pytest.raises(RuntimeError, match="must not require a gradient"):
        aggregate_out_of_core(x.clone().requires_grad_(), graph, budget_bytes=1 << 20, device="cpu")
    with pytest.raises(RuntimeError, match=r"edge_weight must have shape \[6000\], got \[5\]"):
        aggregate_out_of_core(x, graph, torch.ones(5), budget_bytes=1 << 20, device="cpu")
    with pytest.raises(ValueError, match="reduce must be one of"):
        aggregate_out_of_core(x, graph, reduce="prod", budget_bytes=1 << 20, device="cpu")


@pytest.mark.gpu
@no_cuda
def test_out_of_core_keeps_to_the_budget() -> None:
    g = torch.Generator().manual_seed(3)
    edges = torch.randint(20_000, (2, 100_000), generator=g)
    graph = Graph.from_coo(edges.cuda(), 20_000)
    x = torch.randn(20_000, 256).pin_memory()  # 20 MB
    budget = 12 << 20
    aggregate_out_of_core(x, graph, budget_bytes=budget)  # cuts, and makes the plans
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    found = aggregate_out_of_core(x, graph, budget_bytes=budget)
    assert torch.cuda.max_memory_allocated() - before <= budget
    assert torch.equal(found, neighbor_aggregate(x.cuda(), graph).cpu())
