"""Graph: what builders accept and refuse, the transpose, GCN normalisation, moving and flattening."""

import copy
import pickle
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils import _pytree

from torch_gpuprims import Graph, neighbor_aggregate


def ints(*values, dtype=torch.int64, device="cpu"):
    return torch.tensor(values, dtype=dtype, device=device)


def dense(graph: Graph) -> torch.Tensor:
    """[num_dst, num_src]: how many edges."""
    matrix = torch.zeros(graph.num_dst, graph.num_src, dtype=torch.int64)
    ends = graph.destinations().cpu().long(), graph.indices.cpu().long()
    return matrix.index_put(ends, torch.tensor(1), accumulate=True)


def random_coo(num_src, num_dst, edges, seed=0, device="cpu"):
    generator = torch.Generator().manual_seed(seed)
    src = torch.randint(num_src, (edges,), generator=generator)
    dst = torch.randint(num_dst, (edges,), generator=generator)
    return src.to(device), dst.to(device)


INDPTR, INDICES = (0, 2, 2, 5), (0, 2, 1, 1, 0)

BAD_CSR = {
    "Graph: indptr must start at 0, got 3": ((3, 3, 4, 5), INDICES),
    "Graph: indptr must not decrease, but indptr[2] = 3 follows 7": ((0, 7, 3, 5), INDICES),
    "Graph: indptr must not decrease, but indptr[1] = -1 follows 0": ((0, -1, 3, 5), INDICES),
    "Graph: indptr must end at the number of edges (5), got 4": ((0, 2, 2, 4), INDICES),
    "Graph: indices must be in [0, 3), but indices[3] = 9": (INDPTR, (0, 2, 1, 9, 8)),
    "Graph: indices must be in [0, 3), but indices[1] = -1": (INDPTR, (0, -1, 1, 1, 0)),
    "Graph: indptr must have at least 1 element, got 0": ((), ()),
}


@pytest.mark.parametrize("message", BAD_CSR)
def test_bad_data_names_the_first_entry(message, device):
    indptr, indices = BAD_CSR[message]
    with pytest.raises(ValueError) as error:
        Graph.from_csr(ints(*indptr, device=device), ints(*indices, device=device))
    assert str(error.value) == message


BAD_CALLS = {
    "Graph: indptr must have 1 dimension, got 2": lambda: Graph.from_csr(ints(0)[None], ints()),
    "Graph: indptr must be int32 or int64, got float32": lambda: Graph.from_csr(torch.zeros(1), ints()),
    "Graph: indices must be int32 or int64, got uint8": lambda: Graph.from_csr(
        ints(0), ints(dtype=torch.uint8)
    ),
    "Graph: indptr must be a tensor, got list": lambda: Graph.from_csr([0], ints()),
    "Graph: num_src must not be negative, got -1": lambda: Graph.from_csr(ints(0), ints(), -1),
    "Graph: edge_ids must have 1 elements (the number of edges), got 2": lambda: Graph.from_csr(
        ints(0, 1), ints(0), edge_ids=ints(0, 1)
    ),
    "Graph: edge_ids must be in [0, 2), but edge_ids[1] = 2": lambda: Graph.from_csr(
        ints(0, 2), ints(0, 0), edge_ids=ints(0, 2)
    ),
    "Graph: edge_ids must be a permutation, but 1 repeats": lambda: Graph.from_csr(
        ints(0, 2), ints(0, 0), edge_ids=ints(1, 1)
    ),
    "Graph: edge_index must have shape [2, num_edges], got [3, 2]": lambda: Graph.from_coo(
        torch.zeros(3, 2, dtype=torch.int64)
    ),
    "Graph: source must be int32 or int64, got float32": lambda: Graph.from_coo(torch.zeros(2, 4)),
    "Graph: source and destination must have the same length, got 1 and 2": lambda: Graph.from_coo(
        (ints(0), ints(0, 1))
    ),
    "Graph: source must be in [0, 2), but source[1] = 2": lambda: Graph.from_coo((ints(0, 2), ints(1, 0)), 2),
    "Graph: destination must be in [0, 3), but destination[0] = -1": lambda: Graph.from_coo(
        (ints(0, 2), ints(-1, 0))
    ),
    "Graph: the matrix must be sparse_csr or sparse_coo and 2-D, got torch.strided, 2-D": (
        lambda: Graph.from_torch_sparse(torch.eye(2))
    ),
    "Graph: SimpleNamespace has no edge_index": lambda: Graph.from_pyg(SimpleNamespace()),
    "Graph: self-loops need as many sources as destinations, got 2 and 1": lambda: Graph.from_coo(
        (ints(1), ints(0)), num_src=2, num_dst=1
    ).add_self_loops(),
}


@pytest.mark.parametrize("message", BAD_CALLS)
def test_bad_calls(message):
    with pytest.raises(ValueError) as error:
        BAD_CALLS[message]()
    assert str(error.value) == message


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 30), st.integers(1, 30), st.integers(0, 200), st.integers(0, 5))
def test_coo_and_transpose_agree_with_scipy(num_src, num_dst, edges, seed):
    src, dst = random_coo(num_src, num_dst, edges, seed)
    graph = Graph.from_coo((src, dst), num_src=num_src, num_dst=num_dst)
    reference = scipy.sparse.coo_matrix((np.arange(edges), (dst, src)), (num_dst, num_src))
    ids = torch.arange(edges) if graph.edge_ids is None else graph.edge_ids.long()
    assert torch.equal(src[ids], graph.indices.long())
    assert torch.equal(dst[ids], graph.destinations().long())
    assert bool((ids[1:] > ids[:-1])[graph.destinations()[1:] == graph.destinations()[:-1]].all())  # stable
    t_indptr, t_indices, t_ids = graph.transpose()
    counts = np.bincount(src, minlength=num_src)
    assert t_indptr.tolist() == [0, *np.cumsum(counts)]
    assert torch.equal(src[t_ids.long()], torch.arange(num_src).repeat_interleave(torch.as_tensor(counts)))
    assert torch.equal(dst[t_ids.long()], t_indices.long())
    ones = scipy.sparse.coo_matrix((np.ones(edges, int), (dst, src)), (num_dst, num_src)).toarray()
    assert (dense(graph).numpy() == ones).all()
    assert reference.shape == (graph.num_dst, graph.num_src)


@pytest.mark.filterwarnings("ignore:Sparse")
def test_builders_agree(device):
    src, dst = random_coo(5, 4, 17, device=device)
    values = torch.rand(17, device=device)
    x = torch.rand(5, 3, device=device)
    graph = Graph.from_coo((src, dst), num_src=5, num_dst=4)
    expected = neighbor_aggregate(x, graph, values)
    coo = torch.sparse_coo_tensor(torch.stack([dst, src]), values, (4, 5))
    torch.testing.assert_close(coo.to_dense() @ x, expected)
    csr = coo.coalesce().to_sparse_csr()
    for matrix, weight in ((coo, coo._values()), (csr, csr.values())):
        built = Graph.from_torch_sparse(matrix)
        assert (built.num_src, built.num_dst, built.device) == (5, 4, x.device)
        torch.testing.assert_close(neighbor_aggregate(x, built, weight), expected)
    rows = scipy.sparse.coo_matrix((values.cpu().numpy(), (dst.cpu().numpy(), src.cpu().numpy())), (4, 5))
    for matrix in (rows, rows.tocsr(), rows.tocsc()):
        built = Graph.from_scipy(matrix).to(device)
        weight = torch.from_numpy(matrix.tocoo().data if matrix.format != "csr" else matrix.data).to(device)
        torch.testing.assert_close(neighbor_aggregate(x, built, weight), expected)
    data = SimpleNamespace(edge_index=torch.stack([src, dst]), num_nodes=5)
    assert torch.equal(dense(Graph.from_pyg(data))[:4], dense(graph))


def test_defaults_and_sizes():
    graph = Graph.from_coo(torch.tensor([[0, 4], [1, 0]]))
    assert (graph.num_src, graph.num_dst, graph.num_edges) == (5, 5, 2)
    assert graph.degree().tolist() == [1, 1, 0, 0, 0]
    assert Graph.from_coo(torch.zeros(2, 0, dtype=torch.int64)).num_dst == 0
    assert Graph.from_csr(ints(0, 1), ints(0)).num_src == 1
    assert graph.indptr.dtype == graph.indices.dtype == torch.int32
    assert "num_src=5, num_dst=5, num_edges=2, degree mean 0.4 max 1, int32" in repr(graph)
    assert "transpose not built" in repr(graph)
    assert "transpose built" in repr(graph.prepare())


def test_index_tensors_are_copied():
    indptr, indices = ints(*INDPTR, dtype=torch.int32), ints(*INDICES, dtype=torch.int32)
    graph = Graph.from_csr(indptr, indices)
    indptr.fill_(99)
    indices.fill_(99)
    assert graph.indptr.tolist() == list(INDPTR)
    assert graph.indices.tolist() == list(INDICES)


def test_strided_index_tensors(device):
    wide = ints(0, 9, 2, 9, 2, 9, 5, 9, device=device)[::2]
    graph = Graph.from_csr(wide, ints(*INDICES, device=device))
    assert graph.indptr.is_contiguous()
    assert graph.indptr.tolist() == list(INDPTR)


def test_pickle_copy_and_to(device):
    ends = random_coo(6, 6, 20)
    transpose = Graph.from_coo(ends, 6).transpose()
    for prepare in (False, True):
        graph = Graph.from_coo(ends, 6)
        if prepare:
            graph.prepare()
        others = pickle.loads(pickle.dumps(graph)), copy.deepcopy(graph), copy.copy(graph), graph.to(device)
        for other in others:
            pairs = zip(other._tensors(), graph._tensors(), strict=True)
            assert all(torch.equal(a.cpu(), b) for a, b in pairs)
            assert (other.num_src, other.promises) == (graph.num_src, graph.promises)
        for other in others:
            assert all(torch.equal(a.cpu(), b) for a, b in zip(other.transpose(), transpose, strict=True))
        assert graph.to("cpu") is graph


def test_to_keeps_what_is_built(device):
    graph = Graph.from_coo(random_coo(6, 6, 20), 6).prepare(gcn_norm=True)
    moved = graph.to(device)
    assert moved.gcn_norm()[1].device.type == device
    torch.testing.assert_close(moved.gcn_norm()[1].cpu(), graph.gcn_norm()[1])


@pytest.mark.parametrize("prepared", [False, True])
def test_pytree(prepared, device):
    graph = Graph.from_coo(random_coo(7, 5, 20, device=device), num_src=7, num_dst=5)
    if prepared:
        graph.prepare()
    leaves, spec = _pytree.tree_flatten({"g": graph})
    assert all(isinstance(leaf, torch.Tensor) for leaf in leaves)
    back = _pytree.tree_unflatten(leaves, spec)["g"]
    x = torch.rand(7, 3, device=device)
    assert (back.num_src, back.num_dst) == (7, 5)
    assert torch.equal(neighbor_aggregate(x, back), neighbor_aggregate(x, graph))
    assert _pytree.treespec_loads(_pytree.treespec_dumps(spec)) == spec
    assert back.promises == 0  # a tree_map may have put anything there: the op looks again
    broken = _pytree.tree_map(lambda t: t + 100, back)
    assert neighbor_aggregate(x, broken).isnan().all()


def test_one_transpose_for_all_threads():
    graph = Graph.from_coo(random_coo(500, 500, 20_000), 500)
    seen = []
    threads = [threading.Thread(target=lambda: seen.append(graph.transpose()[1])) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({t.data_ptr() for t in seen}) == 1


def test_built_under_inference_mode_serves_training():
    with torch.inference_mode():
        graph = Graph.from_coo(random_coo(5, 5, 9), 5).prepare()
    x = torch.rand(5, 2, requires_grad=True)
    neighbor_aggregate(x, graph).sum().backward()
    assert x.grad is not None


def test_tracing_without_prepare_fails_by_name():
    torch._dynamo.reset()
    graph = Graph.from_coo(random_coo(5, 5, 9), 5)
    run = torch.compile(lambda x: neighbor_aggregate(x, graph), fullgraph=True, backend="aot_eager")
    run(torch.rand(5, 2))  # no gradient, no transpose
    with pytest.raises(Exception, match=r"the transpose is not built: call graph.prepare\(\) before tracing"):
        run(torch.rand(5, 2, requires_grad=True))
    norm = torch.compile(lambda x: graph.gcn_norm()[1] * x, fullgraph=True, backend="aot_eager")
    with pytest.raises(Exception, match=r"call graph.prepare\(gcn_norm=True\) before tracing or capture"):
        norm(torch.rand(1))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_capture_without_prepare_fails_by_name():
    graph = Graph.from_coo(random_coo(5, 5, 9, device="cuda"), 5)
    x = torch.rand(5, 2, device="cuda", requires_grad=True)
    torch.cuda.synchronize()
    with (
        pytest.raises(ValueError, match=r"call graph.prepare\(\) before tracing or capture"),
        torch.cuda.graph(torch.cuda.CUDAGraph()),
    ):
        neighbor_aggregate(x, graph)
    torch.cuda.synchronize()


def gcn_reference(src, dst, weight, nodes, fill, loops=True):
    """D^-1/2 (A + I) D^-1/2 as a dense matrix; nodes that have a loop keep (the last of) theirs."""
    matrix = torch.zeros(nodes, nodes, dtype=torch.float64)
    diagonal = torch.full((nodes,), float(fill), dtype=torch.float64)
    for s, d, w in zip(src.tolist(), dst.tolist(), weight.tolist(), strict=True):
        if s == d and loops:
            diagonal[s] = w
        else:
            matrix[d, s] += w
    if loops:
        matrix += diagonal.diag()
    degree = matrix.sum(1)
    scale = torch.where(degree > 0, degree.clamp(min=1e-300) ** -0.5, torch.zeros_like(degree))
    return scale[:, None] * matrix * scale[None]


@pytest.mark.parametrize("improved", [False, True])
@pytest.mark.parametrize("loops", [False, True])
def test_gcn_norm(improved, loops, device):
    src, dst = random_coo(9, 9, 40)
    src[:3] = dst[:3] = torch.tensor([2, 5, 2])  # loops, one of them twice
    weight = torch.rand(40, dtype=torch.float64) + 0.1
    graph = Graph.from_coo((src, dst), 9).to(device)
    for given_weight in (None, weight):
        reference = gcn_reference(
            src, dst, torch.ones(40) if given_weight is None else weight, 9, 2.0 if improved else 1.0, loops
        )
        normal, values = graph.gcn_norm(
            None if given_weight is None else given_weight.to(device), improved, loops, torch.float64
        )
        eye = torch.eye(9, dtype=torch.float64, device=device)
        torch.testing.assert_close(neighbor_aggregate(eye, normal, values).cpu(), reference)
    assert graph.gcn_norm(None, improved, loops)[1] is graph.gcn_norm(None, improved, loops)[1]
    wanted = weight.to(device).requires_grad_()
    assert torch.autograd.gradcheck(lambda w: graph.gcn_norm(w, improved, loops)[1], wanted)


def test_add_self_loops(device):
    graph = Graph.from_coo((ints(1, 1, 0, device=device), ints(1, 0, 1, device=device)), 3)
    looped, weight = graph.add_self_loops(torch.tensor([5.0, 6.0, 7.0], device=device), 9.0)
    assert dense(looped).tolist() == [[1, 1, 0], [1, 1, 0], [0, 0, 1]]
    eye = torch.eye(3, device=device)
    assert neighbor_aggregate(eye, looped, weight).tolist() == [[9, 6, 0], [7, 5, 0], [0, 0, 9]]
    assert graph.add_self_loops()[1] is None


@pytest.mark.parametrize("how", ["deepcopy", "to", "pickle"])
def test_copied_under_inference_mode_serves_training(how, device):
    graph = Graph.from_coo(torch.tensor([[0, 1, 2], [1, 2, 0]]), 3)
    with torch.inference_mode():
        copied = pickle.loads(pickle.dumps(graph)) if how == "pickle" else copy.deepcopy(graph)
        if how == "to":
            copied = graph._mapped(lambda t: t.to("cpu", copy=True)) if device == "cpu" else graph.to(device)
    x = torch.rand(3, 2, device=copied.device, requires_grad=True)
    neighbor_aggregate(x, copied).sum().backward()
    assert x.grad is not None and x.grad.eq(1).all()


def test_a_deep_copy_shares_nothing_and_keeps_what_is_built(device):
    graph = Graph.from_coo(torch.tensor([[0, 1, 2], [1, 2, 0]], device=device), 3).prepare(gcn_norm=True)
    holder = copy.deepcopy([graph, graph])
    assert holder[0] is holder[1] and holder[0]._transpose is not None
    assert all(
        a is not b and torch.equal(a, b) for a, b in zip(holder[0].csr[:2], graph.csr[:2], strict=True)
    )
    assert holder[0]._derived.keys() == graph._derived.keys()


def test_sizes_and_devices_of_other_kinds_are_refused():
    indptr, indices = torch.tensor([0, 1]), torch.tensor([0])
    for wrong in (3.7, "3"):
        with pytest.raises(ValueError, match=f"num_src must be an integer, got {wrong!r}"):
            Graph.from_csr(indptr, indices, wrong)
    assert Graph.from_csr(indptr, indices, np.int64(3)).num_src == 3
    for other in (torch.float64, torch.ones(1)):
        with pytest.raises(ValueError, match="device must be a torch"):
            Graph.from_csr(indptr, indices).to(other)
    with pytest.raises(ValueError, match=r"reduce must be one of sum, mean, max, min, got \['sum'\]"):
        neighbor_aggregate(torch.rand(1, 1), Graph.from_csr(indptr, indices), None, ["sum"])


def test_lazy_parts_are_waited_for_once(monkeypatch):
    """They are used on every stream from then on."""
    waited = []
    monkeypatch.setattr(Graph, "_there", lambda self, part: waited.append(part) or part)
    graph = Graph.from_coo(torch.tensor([[0, 1, 2], [1, 2, 0]]), 3)
    graph.prepare()
    assert len(waited) == 3  # walk, transpose, its walk
    graph.prepare().add_self_loops()
    assert len(waited) == 4


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")
def test_lazy_parts_are_ready_for_every_stream():
    """One stream, kept busy, builds the transpose and the plans; another uses them at once."""
    g = torch.Generator().manual_seed(0)
    ends = torch.randint(50_000, (2, 800_000), generator=g).cuda()
    x = torch.randint(-8, 8, (50_000, 16), generator=g).float().cuda()
    want = neighbor_aggregate(x.requires_grad_(), Graph.from_coo(ends, 50_000))
    want_grad = torch.autograd.grad(want.sum(), x)[0]
    for _ in range(5):
        graph = Graph.from_coo(ends, 50_000)
        torch.cuda.synchronize()
        first, second = torch.cuda.Stream(), torch.cuda.Stream()
        with torch.cuda.stream(first):
            torch.cuda._sleep(200_000_000)
            out = neighbor_aggregate(x, graph)
        with torch.cuda.stream(second):
            other = neighbor_aggregate(x, graph)
            grad = torch.autograd.grad(other.sum(), x)[0]
            second.synchronize()
        first.synchronize()
        assert torch.equal(out, want) and torch.equal(other, want) and torch.equal(grad, want_grad)
