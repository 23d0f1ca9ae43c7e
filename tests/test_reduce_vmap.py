"""vmap of reduce, stats and dot: a loop over slices, with the words and the bits of one of them."""

import re

import pytest
import torch

import torch_gpuprims as gp


def refused(words: str, function, *tensors: torch.Tensor, **how: object) -> None:
    """By vmap, and of one slice."""
    with pytest.raises(RuntimeError, match=re.escape(words)):
        function(*(t[0] for t in tensors))
    with pytest.raises(RuntimeError, match=re.escape(words)):
        torch.vmap(function, **how)(*tensors)


def test_errors_are_those_of_a_slice(device: str) -> None:
    x = torch.randn(5, 3, 4, device=device)
    cases = (
        ("reduce: argmax takes one dim or None, got 2 dims", lambda t: gp.reduce(t, "argmax", (0, 1))),
        ("reduce: dim must be between -2 and 1, got 2", lambda t: gp.reduce(t, "sum", 2)),
        ("reduce: dim 1 appears twice", lambda t: gp.reduce(t, "sum", (1, -1))),
        ("stats: indices take one dim or None, got 2 dims", lambda t: gp.stats(t, (0, 1), indices=True)[0]),
        ("stats: dim must be between -2 and 1, got -3", lambda t: gp.stats(t, -3)[0]),
    )
    for words, function in cases:
        refused(words, function, x)
    refused("dot: input must be floating, got int32", gp.dot, x[0].int(), x[0].int())
    words = "dot: other must have the dtype of input (float32), got float64"
    refused(words, gp.dot, x[0], x[0].double())
    refused(
        "dot: input and other must be vectors of one length, got shapes [4] and [1]",
        gp.dot,
        x[0],
        x[0][:, :1],
    )


def test_bits_are_those_of_a_slice(device: str) -> None:
    x = torch.randn(1000, 6, generator=torch.Generator().manual_seed(0)).to(device)
    wide = torch.randn(40, 6, 50, generator=torch.Generator().manual_seed(1)).to(device)
    for op in ("sum", "mean", "norm", "argmax"):
        got = torch.vmap(lambda t: gp.reduce(t, op), in_dims=1)(x)  # noqa: B023
        assert torch.equal(got, torch.stack([gp.reduce(t, op) for t in x.unbind(1)])), op
        for dim in (0, 1, None):
            got = torch.vmap(lambda t: gp.reduce(t, op, dim), in_dims=1)(wide)  # noqa: B023
            assert torch.equal(got, torch.stack([gp.reduce(t, op, dim) for t in wide.unbind(1)])), (op, dim)
    got = torch.vmap(gp.dot, in_dims=(1, 1))(x, x)
    assert torch.equal(got, torch.stack([gp.dot(t, t) for t in x.unbind(1)]))
    got = torch.vmap(gp.dot, in_dims=(1, None))(x, x[:, 0])
    assert torch.equal(got, torch.stack([gp.dot(t, x[:, 0]) for t in x.unbind(1)]))
