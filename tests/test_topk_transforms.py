"""Transforms over the topk family: forward-mode AD, gradients of single elements, what vmap must refuse."""

import pytest
import torch
from torch.autograd import forward_ad

from torch_gpuprims import approx_topk, merge_topk, segment_topk, topk, topk_gate

func = torch.func


class TestForwardMode:
    @pytest.mark.parametrize("dim", [0, -1])
    def test_topk_as_torch_topk(self, device, dim):
        x = torch.randn(4, 6, device=device, dtype=torch.float64)

        def loss(of):
            return lambda t: of(t, 3, dim).values.square().prod()

        for transform in (func.hessian, func.jacfwd, lambda f: func.jacfwd(func.jacfwd(f))):
            torch.testing.assert_close(transform(loss(topk))(x), transform(loss(torch.topk))(x))
        tangent = torch.randn_like(x)
        ours, theirs = (
            func.jvp(lambda t, of=of: of(t, 2, dim).values, (x,), (tangent,)) for of in (topk, torch.topk)
        )
        assert torch.equal(ours[0], theirs[0]) and torch.equal(ours[1], theirs[1])
        with forward_ad.dual_level():
            dual = topk(forward_ad.make_dual(x, tangent), 2, dim).values
            assert torch.equal(forward_ad.unpack_dual(dual).tangent, theirs[1])
        batched = torch.vmap(func.jacfwd(lambda t: topk(t, 2).values))(x)
        assert torch.equal(batched, torch.vmap(func.jacfwd(lambda t: torch.topk(t, 2).values))(x))

    def test_missing_slots_do_not_move(self, device):
        x = torch.tensor([[3.0, 1.0, 2.0]] * 2, device=device)
        mask = torch.tensor([[True, False, True], [False] * 3], device=device)
        moved = func.jvp(lambda t: topk(t, 3, mask=mask).values, (x,), (x + 10,))[1]
        assert moved.tolist() == [[13, 12, 0], [0, 0, 0]]
        for kept in (True, False):
            m = torch.tensor(kept, device=device)
            moved = func.jvp(lambda t, m=m: topk(t, 1, mask=m).values, (x[0, 0],), (x[0, 0],))[1]
            assert moved.item() == 3.0 * kept

    def test_the_rest_of_the_family(self, device):
        x = torch.randn(12, device=device, dtype=torch.float64).requires_grad_()
        ids = torch.arange(12, device=device) - 2
        indptr = torch.tensor([0, 5, 5, 12], device=device)
        bias = torch.randn(12, device=device, dtype=torch.float64)

        def present(result):
            return torch.where(result.indices < 0, 0, result.values)

        calls = [
            lambda t: approx_topk(t, 4).values,
            lambda t: approx_topk(t.view(4, 3), 2, dim=0).values,
            lambda t: present(merge_topk(t, ids, 11)),
            lambda t: present(segment_topk(t, indptr, 6)),
        ]
        for scoring in ("softmax", "sigmoid"):
            for renormalize in (True, False):
                options = {"scoring": scoring, "renormalize": renormalize, "scale": 1.7, "bias": bias}
                calls.append(lambda t, options=options: topk_gate(t, 3, **options).weights)
        for call in calls:
            assert torch.autograd.gradcheck(call, x, check_forward_ad=True, check_batched_forward_grad=True)
            assert torch.autograd.gradgradcheck(call, x, check_fwd_over_rev=True)
        none = func.jvp(lambda t: segment_topk(t, indptr[:1], 2).values, (x[:0].detach(),), (x[:0].detach(),))
        assert none[1].shape == (0, 2)

    def test_a_tangent_of_the_bias_alone(self, device):
        x, bias = torch.randn(3, 8, device=device), torch.randn(8, device=device)
        weights, moved = func.jvp(lambda b: topk_gate(x, 2, bias=b).weights, (bias,), (bias,))
        assert weights.shape == (3, 2) and not moved.any()


def test_gradient_of_a_single_masked_element(device):
    for kept in (True, False):
        mask = torch.tensor(kept, device=device)
        x = torch.tensor(3.0, device=device, requires_grad=True)
        for call in (topk, torch.ops.gpuprims.topk):
            values = call(x, 1, mask=mask)[0]
            (grad,) = torch.autograd.grad(values, x, torch.tensor(2.0, device=device))
            assert grad.item() == 2.0 * kept
    x, mask = torch.rand(3, device=device), torch.tensor([True, False, True], device=device)
    grads = torch.vmap(func.grad(lambda t, m: topk(t, 1, mask=m).values))(x, mask)
    assert grads.tolist() == [1, 0, 1]


def refused(call, *args, **options):
    with pytest.raises(RuntimeError) as error:
        torch.vmap(lambda *a: tuple(call(*a)), **options)(*args)
    return str(error.value)


def test_vmap_refuses_what_a_sample_cannot_be(device):
    """The batch's dimension must not pass for one of the sample's."""
    x, ids = torch.rand(4, 5, device=device), torch.arange(4, device=device)
    mask = x > 0.5
    words = "topk: mask of shape [4, 5] does not broadcast to input of shape [5]"
    assert refused(lambda t, m: topk(t, 2, mask=m), x, mask, in_dims=(0, None)) == words
    assert refused(lambda t, m: topk(t, 2, mask=m), x, torch.stack([mask] * 4)) == words
    words = "topk: mask of shape [5] does not broadcast to input of shape []"
    assert refused(lambda t, m: topk(t, 1, mask=m), x[:, 0], mask) == words

    words = "merge_topk: values must have at least 1 dimension, got 0"
    assert refused(lambda t, i: merge_topk(t, i, 2), x[:, 0], ids) == words

    one = torch.tensor([0, 1], device=device)
    words = "segment_topk: values must have 1 dimension, got 0"
    assert refused(lambda t: segment_topk(t, one, 2), x[:, 0]) == words
    words = "segment_topk: indptr must have 1 dimension, got 2"
    assert refused(lambda t: segment_topk(t, one[None], 2), x[:, :1]) == words
    words = "segment_topk: indptr must be int32 or int64, got float32"
    assert refused(lambda t: segment_topk(t, one.float(), 2), x[:, :1]) == words
    words = "segment_topk: index_dtype must be int64 or int32"
    assert refused(lambda t: segment_topk(t, one, 2, index_dtype=torch.int16), x[:, :1]) == words


def test_vmap_takes_what_a_sample_can_be(device):
    x, mask = torch.rand(4, 3, 5, device=device), torch.rand(3, 5, device=device) < 0.5

    def run(t, m):
        return tuple(topk(t, 2, mask=m))

    for kept in (mask, mask[0], mask[:, :1], mask[0, 0]):
        loop = [torch.stack(out) for out in zip(*(run(t, kept) for t in x), strict=True)]
        assert all(map(torch.equal, torch.vmap(run, in_dims=(0, None))(x, kept), loop))
    scalar = torch.vmap(lambda t, m: tuple(topk(t, 1, mask=m)), in_dims=(0, None))(x[0, 0], mask[0, 0])
    assert scalar[0].shape == (5,)


def test_errors_name_the_dimension_that_was_given(device):
    x, ids = torch.rand(3, 4, device=device), torch.zeros(3, 5, dtype=torch.int64, device=device)
    with pytest.raises(RuntimeError) as error:
        approx_topk(x, 5, dim=0)
    assert str(error.value) == "topk: k must be between 0 and 3 (the size of dimension 0), got 5"
    with pytest.raises(RuntimeError) as error:
        merge_topk(x, ids, 2, dim=0)
    assert str(error.value) == "merge_topk: indices must have the shape of values [3, 4], got [3, 5]"
