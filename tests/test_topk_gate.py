"""topk_gate against a float64 reference, and everything its contract says beyond the table."""

import doctest
import sys

import gate_reference as ref
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map_only

import torch_gpuprims
from torch_gpuprims import explain, topk_gate
from torch_gpuprims.nn import TopKGate

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
DEEPSEEK = {"scoring": "sigmoid", "num_groups": 8, "topk_groups": 4, "scale": 2.5}


def real(dtype):
    return torch.float64 if dtype == torch.float64 else torch.float32


def check(x, k, index_dtype=torch.int64, **options):
    result = topk_gate(x, k, index_dtype=index_dtype, **options)
    assert isinstance(result, torch_gpuprims.TopKGate)
    assert result.weights.shape == result.indices.shape == (*x.shape[:-1], k)
    assert result.weights.is_contiguous() and result.indices.is_contiguous()
    assert result.weights.dtype == real(x.dtype) and result.indices.dtype == index_dtype
    return ref.check(result, x, k, **options)


@st.composite
def problems(draw):
    groups = draw(st.sampled_from([1, 1, 2, 3, 8, 40]))
    n = groups * draw(st.sampled_from([1, 2, 5, 8, 16, 32]))
    kept = draw(st.integers(1, groups))
    most = min(64, n // groups * kept)
    dtype = draw(st.sampled_from(DTYPES))
    return {
        "rows": draw(st.sampled_from([1, 3, 9])),
        "n": n,
        "k": draw(st.sampled_from([0, 1, most, min(8, most), most // 2])),
        "dtype": dtype,
        "kind": draw(st.sampled_from(ref.KINDS)),
        "bias_dtype": draw(st.sampled_from([None, torch.float32, dtype])),
        "off": draw(st.booleans()),  # some experts' bias is -inf
        "stepped": draw(st.booleans()),
        "index_dtype": draw(st.sampled_from([torch.int64, torch.int32])),
        "seed": draw(st.integers(0, 2**32 - 1)),
        "options": {
            "scoring": draw(st.sampled_from(["softmax", "sigmoid"])),
            "renormalize": draw(st.booleans()),
            "num_groups": groups,
            "topk_groups": kept,
            "scale": draw(st.sampled_from([1.0, 2.5, 0.0, -1.0])),
        },
    }


def random_bias(n, dtype, generator, off=False):
    bias = torch.from_numpy(generator.choice(np.arange(-4, 5) / 16, n)).to(dtype)
    return torch.where(torch.from_numpy(generator.random(n) < 0.2), -torch.inf, bias) if off else bias


class TestValues:
    @given(problem=problems())
    def test_any_input(self, device, problem):
        generator = np.random.default_rng(problem["seed"])
        n = problem["n"]
        x = ref.random_logits(problem["rows"], n, problem["dtype"], generator, problem["kind"]).to(device)
        if problem["stepped"]:  # an odd storage offset, elements apart
            wide = x.new_zeros(len(x), 2 * n + 3)
            wide[:, 3::2] = x
            x = wide[:, 3::2]
        options = problem["options"]
        if problem["bias_dtype"] is not None:
            bias = random_bias(n, problem["bias_dtype"], generator, problem["off"])
            options["bias"] = bias.to(device)
        check(x, problem["k"], problem["index_dtype"], **options)

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    @pytest.mark.parametrize(
        "n, k", [(256, 8), (60, 4), (128, 8), (384, 24), (500, 12), (2048, 64), (160, 40)]
    )
    def test_sizes_of_models(self, device, dtype, n, k):
        generator = np.random.default_rng(n)
        bias = random_bias(n, torch.float32, generator).to(device)
        groups = {"num_groups": 4, "topk_groups": 3}
        for kind in ref.KINDS:
            x = ref.random_logits(5, n, dtype, generator, kind).to(device)
            for scoring in ("softmax", "sigmoid"):
                for renormalize in (True, False):
                    options = {"scoring": scoring, "renormalize": renormalize, "scale": 1.5}
                    assert check(x, k, **options) == 1  # by the logits: never in doubt
                    check(x, k, bias=bias, **options)
                    check(x, k, **groups, **options)
                    check(x, k, bias=bias, **groups, **options)

    def test_deepseek(self, device):
        generator = np.random.default_rng(3)
        x = ref.random_logits(400, 256, torch.float32, generator, "normal").to(device)
        bias = torch.from_numpy(generator.normal(size=256) * 0.1).float().to(device)
        assert check(x, 8, bias=bias, **DEEPSEEK) > 0.95
        assert check(x.bfloat16(), 8, bias=bias, **DEEPSEEK) > 0.95

    @pytest.mark.parametrize("lanes, k", [(8, 6), (16, 8), (16, 12), (32, 24)])
    def test_crowded_lanes(self, device, lanes, k):
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            assert check(ref.crowded(9, lanes, k, dtype).to(device), k) == 1

    def test_group_counts(self, device):
        x = torch.randn(7, 2048, device=device)
        for groups in (2, 16, 32, 64, 256, 2048):
            for scoring in ("softmax", "sigmoid"):
                kept = max(1, groups // 3)
                check(x, 1, scoring=scoring, num_groups=groups, topk_groups=kept)
                check(x, min(64, 2048 // groups * kept), scoring=scoring, num_groups=groups, topk_groups=kept)
        kept = topk_gate(torch.zeros(2, 64, device=device), 8, num_groups=16, topk_groups=2)
        assert kept.indices.tolist() == [list(range(8))] * 2  # tied groups and experts: the first ones

    def test_a_row_does_not_depend_on_the_batch(self, device):
        for dtype in (torch.float32, torch.bfloat16):
            x = torch.randn(301, 256, device=device).to(dtype)
            bias = torch.randn(256, device=device)
            for options in ({}, {"renormalize": False}, {"bias": bias, "renormalize": False}):
                whole = topk_gate(x, 8, **options)
                assert all(map(torch.equal, topk_gate(x[7], 8, **options), (t[7] for t in whole)))
                shifted = torch.cat([x.flatten()[:3], x.flatten()])[3:].view(x.shape)  # not aligned
                assert all(map(torch.equal, topk_gate(shifted, 8, **options), whole))

    def test_row_of_nan(self, device):
        x = torch.full((3, 64), torch.nan, device=device)
        bias = torch.randn(64, device=device)
        for scoring in ("softmax", "sigmoid"):
            for added in (None, bias):
                out = topk_gate(x, 6, scoring=scoring, bias=added, num_groups=8, topk_groups=2)
                assert out.indices.tolist() == [list(range(6))] * 3
                assert out.weights.isnan().all()

    def test_scores_that_add_up_to_nothing(self, device):
        x = torch.full((2, 8), -200.0, device=device)
        x[1] = -torch.inf
        out = topk_gate(x.requires_grad_(), 3, scoring="sigmoid")
        assert out.weights.tolist() == [[0.0] * 3] * 2 and out.indices.tolist() == [[0, 1, 2]] * 2
        out.weights.sum().backward()
        assert not x.grad.any()
        low = torch.tensor([[0.0, -300.0, -300.0]], device=device)  # the bias chooses what has no weight
        out = topk_gate(low, 2, bias=torch.tensor([-9.0, 0.0, 0.0], device=device))
        assert out.indices.tolist() == [[1, 2]] and out.weights.tolist() == [[0.0, 0.0]]
        assert topk_gate(x[1:], 2).weights.isnan().all()  # as torch.softmax of nothing but -inf

    def test_beside_torch(self, device):
        x = torch.randn(50, 128, device=device)
        weights, indices = topk_gate(x, 8, renormalize=False)
        expected = torch.topk(torch.softmax(x, -1), 8)
        assert torch.equal(indices, expected.indices)
        torch.testing.assert_close(weights, expected.values)


BAD = {
    "topk_gate: logits must be float32, bfloat16, float16 or float64, got int64": lambda x: (x.long(), 1),
    "topk_gate: logits must have at least 1 dimension, got 0": lambda x: (x[0, 0], 1),
    "topk_gate: scoring must be 0 (softmax) or 1 (sigmoid), got 2": lambda x: (x, 1, None, 2),
    "topk_gate: at most 2048 experts are supported, got 2049": lambda x: (x.new_zeros(2, 2049), 1),
    "topk_gate: num_groups must divide the 12 experts, got 5": lambda x: (x, 1, None, 0, True, 5),
    "topk_gate: num_groups must divide the 12 experts, got 0": lambda x: (x, 1, None, 0, True, 0),
    "topk_gate: topk_groups must be between 1 and 3 (num_groups), got 4": lambda x: (
        (x, 1, None, 0, True, 3, 4)
    ),
    "topk_gate: topk_groups must be between 1 and 3 (num_groups), got 0": lambda x: (
        (x, 1, None, 0, True, 3, 0)
    ),
    "topk_gate: k must be between 0 and 8 (the experts of the kept groups), got 9": lambda x: (
        (x, 9, None, 0, True, 3, 2)
    ),
    "topk_gate: k must be between 0 and 12 (the experts of the kept groups), got -1": lambda x: (x, -1),
    "topk_gate: k must be at most 64, got 65": lambda x: (x.new_zeros(2, 100), 65),
    "topk_gate: bias must have shape [12], got [11]": lambda x: (x, 1, x.new_zeros(11)),
    "topk_gate: bias must have shape [12], got [1, 12]": lambda x: (x, 1, x[:1]),
    "topk_gate: bias must be float32, got float64": lambda x: (x, 1, x[0].double()),
    "topk_gate: bias must be float32 or bfloat16, got float16": lambda x: (x.bfloat16(), 1, x[0].half()),
    "topk_gate: index_dtype must be int64 or int32": lambda x: (x, 1, None, 0, True, 1, 1, 1.0, 16),
}


def raised(call, *args, kind=RuntimeError, **kwargs):
    with pytest.raises(kind) as error:
        call(*args, **kwargs)
    return str(error.value)


class TestErrors:
    @pytest.mark.parametrize("words", BAD)
    def test_same_words_everywhere(self, device, words):
        args = BAD[words](torch.zeros(3, 12, device=device))
        assert raised(torch.ops.gpuprims.topk_gate, *args) == words
        with FakeTensorMode() as mode:
            fake = tree_map_only(torch.Tensor, mode.from_tensor, args)
            assert raised(torch.ops.gpuprims.topk_gate, *fake) == words

    def test_wrapper(self, device):
        x = torch.zeros(3, 12, device=device)
        words = "topk_gate: scoring must be one of softmax, sigmoid, got 'tanh'"
        assert raised(topk_gate, x, 1, scoring="tanh", kind=ValueError) == words
        assert raised(TopKGate, 1, scoring="tanh", kind=ValueError) == words.replace("topk_gate", "TopKGate")
        assert "index_dtype" in raised(topk_gate, x, 1, index_dtype=torch.int16)
        sparse = "topk_gate: {} must be a dense tensor, got a sparse layout"
        assert raised(topk_gate, x.to_sparse(), 1) == sparse.format("logits")
        assert raised(topk_gate, x, 1, bias=x[0].to_sparse()) == sparse.format("bias")
        words = "topk_gate: k must be between 0 and 12 (the experts of the kept groups), got 13"
        assert raised(topk_gate, x, 13) == raised(topk_gate, x.clone().requires_grad_(), 13) == words

    @pytest.mark.gpu
    @pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")
    def test_devices(self):
        words = "topk_gate: bias must be on the device of logits"
        assert raised(topk_gate, torch.zeros(3, 4, device="cuda"), 1, bias=torch.zeros(4)) == words


OPTIONS = [
    {"scoring": scoring, "renormalize": renormalize, "scale": 1.7, **more}
    for scoring in ("softmax", "sigmoid")
    for renormalize in (True, False)
    for more in ({}, {"num_groups": 3, "topk_groups": 2})
]


def plain_gate(x, indices, scoring, renormalize, scale, **groups):
    """The weights of given experts, of PyTorch's own differentiable ops."""
    scores = torch.softmax(x, -1) if scoring == "softmax" else torch.sigmoid(x)
    weights = scores.gather(-1, indices)
    return (weights / weights.sum(-1, keepdim=True) if renormalize else weights) * scale


class TestTransforms:
    @pytest.mark.parametrize("options", OPTIONS, ids=str)
    def test_gradients(self, device, options):
        x = (torch.randperm(24, device=device).double() / 6 - 2).view(2, 12).requires_grad_()
        bias = torch.linspace(-0.3, 0.3, 12, device=device, dtype=torch.float64).requires_grad_()
        code = ["softmax", "sigmoid"].index(options["scoring"])
        positional = [options.get(name, 1) for name in ("num_groups", "topk_groups", "scale")]
        for added in (None, bias):

            def wrapped(t, added=added):
                return topk_gate(t, 3, bias=added, **options)

            def raw(t, added=added):
                return torch.ops.gpuprims.topk_gate(t, 3, added, code, options["renormalize"], *positional)

            for call in (wrapped, raw):
                assert torch.autograd.gradcheck(lambda t, call=call: call(t)[0], x)
                assert torch.autograd.gradgradcheck(lambda t, call=call: call(t)[0], x)
                weights, indices = call(x)
                assert weights.requires_grad and not indices.requires_grad
                g = torch.randn_like(weights)
                (actual,) = torch.autograd.grad((weights * g).sum(), x, retain_graph=True)
                (expected,) = torch.autograd.grad((plain_gate(x, indices, **options) * g).sum(), x)
                torch.testing.assert_close(actual, expected)
                if added is not None:  # the bias chooses; it has no gradient
                    assert torch.autograd.grad(weights.sum(), added, allow_unused=True) == (None,)

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_gradient_has_the_dtype_of_logits(self, device, dtype):
        for options in OPTIONS:
            x = torch.randn(5, 12, device=device).to(dtype).requires_grad_()
            weights, indices = topk_gate(x, 4, **options)
            weights.square().sum().backward()
            y = x.detach().to(real(dtype)).requires_grad_()
            plain_gate(y, indices, **options).square().sum().backward()
            assert x.grad.dtype == dtype
            torch.testing.assert_close(x.grad, y.grad.to(dtype), rtol=2 * torch.finfo(dtype).eps, atol=1e-6)

    def test_scale_of_nothing(self, device):
        x = torch.randn(3, 8, device=device, requires_grad=True)
        for options in OPTIONS[::2]:
            weights = topk_gate(x, 2, **{**options, "scale": 0.0}).weights
            assert not weights.any() and not torch.autograd.grad(weights.sum(), x)[0].any()

    def test_memory_of_the_gradient(self, device):
        """Renormalised softmax keeps k weights and indices a row, and not the logits."""
        x = torch.randn(5, 12, device=device, requires_grad=True)
        kept = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.shape) or t, lambda t: t):
            topk_gate(x, 3)
        assert kept and all(shape == (5, 3) for shape in kept)

    def test_compile_once(self, device):
        gate = TopKGate(2, num_experts=8, **{**DEEPSEEK, "num_groups": 4, "topk_groups": 2}).to(device)
        counter = CompileCounterWithBackend("aot_eager")
        torch._dynamo.reset()
        compiled = torch.compile(gate, fullgraph=True, dynamic=True, backend=counter)
        counts = []
        for rows in (5, 7, 13):
            x = torch.randn(rows, 3, 8, device=device)
            assert all(map(torch.equal, compiled(x), gate(x)))
            counts.append(counter.frame_count)  # Dynamo may start once more to make a constant of `scale`
        assert counts[0] == counts[-1]

    def test_vmap_and_grad(self, device):
        x, bias = torch.randn(3, 4, 8, device=device), torch.randn(3, 8, device=device)

        def run(t, b):
            return tuple(topk_gate(t, 2, bias=b))

        loop = [torch.stack(out) for out in zip(*map(run, x, bias), strict=True)]
        assert all(map(torch.equal, torch.vmap(run)(x, bias), loop))
        rows = [torch.stack(out) for out in zip(*(run(t, bias[0]) for t in x), strict=True)]
        assert all(map(torch.equal, torch.vmap(run, in_dims=(0, None))(x, bias[0]), rows))
        single = torch.vmap(lambda t: tuple(topk_gate(t, 2)))(x[0])
        assert all(map(torch.equal, single, topk_gate(x[0], 2)))

        def loss(t):
            return topk_gate(t, 2, renormalize=False).weights.square().sum()

        expected = torch.autograd.grad(loss(leaf := x.clone().requires_grad_()), leaf)[0]
        assert torch.equal(torch.func.grad(loss)(x), expected)
        torch.testing.assert_close(torch.vmap(torch.func.grad(loss))(x), expected)

    def test_autocast_and_parameters(self, device):
        x = torch.nn.Parameter(torch.randn(4, 8, device=device))
        with torch.autocast(device, torch.bfloat16):
            out = topk_gate(x, 2, renormalize=False)
        assert torch.equal(out.weights, topk_gate(x.detach(), 2, renormalize=False).weights)
        out.weights.sum().backward()
        assert x.grad.dtype == torch.float32

    def test_module(self, device):
        gate = TopKGate(2, scoring="sigmoid", num_experts=6, scale=2.0, index_dtype=torch.int32).to(device)
        assert list(gate.state_dict()) == ["bias"] and not list(gate.parameters())
        gate.bias[5] = 10.0
        x = torch.randn(4, 6, device=device)
        out = gate(x)
        assert (out.indices[:, 0] == 5).all() and out.indices.dtype == torch.int32
        torch.testing.assert_close(out.weights.sum(-1), torch.full((4,), 2.0, device=device))
        assert repr(gate) == (
            "TopKGate(k=2, scoring='sigmoid', bias=True, renormalize=True, num_groups=1, topk_groups=1, "
            "scale=2.0, index_dtype=torch.int32)"
        )
        assert TopKGate(2).bias is None and not TopKGate(2).state_dict()

    def test_docstrings(self):
        for module in (topk_gate.__module__, TopKGate.__module__):
            assert doctest.testmod(sys.modules[module], extraglobs={"torch": torch}).failed == 0


def test_explain():
    x = torch.empty(16_384, 256)
    assert explain("topk_gate", x, 8).startswith(
        "topk_gate float32 [16384, 256] k=8 -> lanes, 16 lanes a row"
    )
    bias = torch.empty(256)
    assert "-> warp, 32 lanes a row" in explain("topk_gate", x, 8, bias=bias, num_groups=8, topk_groups=4)
    assert "nothing to launch" in explain("topk_gate", x, 0)


def test_sharded():
    distributed = pytest.importorskip("torch.distributed.tensor")
    if not torch.distributed.is_available():
        pytest.skip("PyTorch without torch.distributed")
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        mesh = torch.distributed.init_device_mesh("cpu", (2,))
        x = torch.randn(4, 6)
        by_rows = distributed.DTensor.from_local(x[:2], mesh, [distributed.Shard(0)])
        weights, indices = topk_gate(by_rows, 2)
        assert weights.placements == indices.placements == (distributed.Shard(0),)
        assert torch.equal(weights.to_local(), topk_gate(x[:2], 2).weights)
        by_columns = distributed.DTensor.from_local(x[:, :3], mesh, [distributed.Shard(1)])
        assert topk_gate(by_columns, 2).weights.placements == (distributed.Replicate(),)
    finally:
        torch.distributed.destroy_process_group()
