"""topk_gate against a float64 reference, and everything its contract says beyond the table."""

import gate_reference as ref
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
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
        words = "topk_gate: bias must be on the device of logits"
        assert raised(topk_gate, x, 1, bias=torch.zeros(12, device="meta")) == words
        words = "topk_gate: k must be between 0 and 12 (the experts of the kept groups), got 13"
        assert raised(topk_gate, x, 13) == raised(topk_gate, x.clone().requires_grad_(), 13) == words

    @pytest.mark.gpu
    @pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")
    def test_devices(self):
        words = "topk_gate: bias must be on the device of logits"
        assert raised(topk_gate, torch.zeros(3, 4, device="cuda"), 1, bias=torch.zeros(4)) == words


def test_explain():
    x = torch.empty(16_384, 256)
    assert explain("topk_gate", x, 8).startswith(
        "topk_gate float32 [16384, 256] k=8 -> lanes, 16 lanes a row"
    )
    bias = torch.empty(256)
    assert "-> warp, 32 lanes a row" in explain("topk_gate", x, 8, bias=bias, num_groups=8, topk_groups=4)
    assert "nothing to launch" in explain("topk_gate", x, 0)
