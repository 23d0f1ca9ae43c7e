"""topk_gate's gradients, compilation, batching, module and sharding, beyond the contract table."""

import doctest
import sys

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from torch_gpuprims import topk_gate
from torch_gpuprims.nn import TopKGate

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
DEEPSEEK = {"scoring": "sigmoid", "num_groups": 8, "topk_groups": 4, "scale": 2.5}


def real(dtype):
    return torch.float64 if dtype == torch.float64 else torch.float32


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

    def test_bias_keeps_its_dtype(self, device):
        x = torch.randn(4, 6, device=device)
        for change in (lambda m: m.bfloat16(), lambda m: m.half(), lambda m: m.to(device, torch.float64)):
            gate = TopKGate(2, num_experts=6).to(device)
            gate.bias += 1 + 2**-20 * torch.arange(6, device=device)
            kept = gate.bias.clone()
            assert change(gate) is gate and torch.equal(gate.bias, kept)
            assert gate.bias.dtype == torch.float32 and list(gate.state_dict()) == ["bias"]
            for dtype in DTYPES:
                gate(x.to(dtype))
        whole = torch.nn.Sequential(torch.nn.Linear(6, 6), TopKGate(2, num_experts=6)).to(device).bfloat16()
        assert whole[0].weight.dtype == torch.bfloat16 and whole[1].bias.dtype == torch.float32
        assert whole(x.bfloat16()).indices.shape == (4, 2)
        assert whole.to("meta")[1].bias.is_meta and TopKGate(2).half().bias is None

    def test_docstrings(self):
        for module in (topk_gate.__module__, TopKGate.__module__):
            assert doctest.testmod(sys.modules[module], extraglobs={"torch": torch}).failed == 0


def test_sharded(two_ranks):
    distributed, mesh = two_ranks
    x = torch.randn(4, 6)
    by_rows = distributed.DTensor.from_local(x[:2], mesh, [distributed.Shard(0)])
    weights, indices = topk_gate(by_rows, 2)
    assert weights.placements == indices.placements == (distributed.Shard(0),)
    assert torch.equal(weights.to_local(), topk_gate(x[:2], 2).weights)
    by_columns = distributed.DTensor.from_local(x[:, :3], mesh, [distributed.Shard(1)])
    assert topk_gate(by_columns, 2).weights.placements == (distributed.Replicate(),)
