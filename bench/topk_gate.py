"""topk_gate beside plain topk of the same logits, and beside the PyTorch ops it replaces, in one run."""

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

import torch_gpuprims
from bench import harness

#: (name, tokens, experts, k, dtype, options); the first has a target: 1.15 times plain topk.
CASES: list[tuple[str, int, int, int, torch.dtype, dict[str, Any]]] = [
    ("softmax", 16_384, 256, 8, torch.float32, {}),
    ("softmax, not renormalised", 16_384, 256, 8, torch.float32, {"renormalize": False}),
    ("softmax", 16_384, 256, 8, torch.bfloat16, {}),
    ("softmax", 16_384, 128, 8, torch.float32, {}),
    ("softmax", 128, 128, 8, torch.float32, {}),
    ("sigmoid", 16_384, 128, 8, torch.bfloat16, {"scoring": "sigmoid"}),
    (
        "sigmoid, bias, 4 of 8 groups", 16_384, 256, 8, torch.float32,
        {"scoring": "sigmoid", "bias": True, "num_groups": 8, "topk_groups": 4, "scale": 2.5},
    ),
    (
        "sigmoid, bias, 4 of 8 groups", 128, 256, 8, torch.float32,
        {"scoring": "sigmoid", "bias": True, "num_groups": 8, "topk_groups": 4, "scale": 2.5},
    ),
    ("softmax, 3 of 8 groups", 16_384, 160, 6, torch.float32, {"num_groups": 8, "topk_groups": 3}),
    ("sigmoid, bias", 16_384, 384, 8, torch.float32, {"scoring": "sigmoid", "bias": True}),
    ("softmax", 16_384, 2048, 64, torch.float32, {}),
]  # fmt: skip


def torch_gate(
    logits: torch.Tensor, k: int, scoring: str = "softmax", bias: torch.Tensor | None = None,
    renormalize: bool = True, num_groups: int = 1, topk_groups: int = 1, scale: float = 1.0,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """The same of PyTorch's own ops, as models write it; scores in float32."""
    if scoring == "softmax":
        scores = torch.softmax(logits, -1, dtype=torch.float32)
    else:
        scores = torch.sigmoid(logits.float())
    choice = scores if bias is None else scores + bias
    if topk_groups < num_groups:
        groups = choice.view(len(logits), num_groups, -1)
        best = groups.amax(-1) if scoring == "softmax" else groups.topk(2, -1).values.sum(-1)
        kept = torch.zeros_like(best, dtype=torch.bool).scatter(1, best.topk(topk_groups, -1).indices, True)
        choice = groups.masked_fill(~kept.unsqueeze(-1), -torch.inf).view_as(choice)
    indices = choice.topk(k, -1).indices
    weights = scores.gather(-1, indices)
    if renormalize:
        weights = weights / weights.sum(-1, keepdim=True)
    return weights * scale if scale != 1 else weights, indices


def verify(ours: Callable[[], Any], theirs: Callable[[], Any]) -> str | None:
    """What is wrong, or None. Rounding may choose otherwise in a row of a thousand."""
    (weights, indices), (expected, _) = ours(), theirs()
    off = ((weights - expected).abs() > 2e-5 * expected.abs().clamp(min=1e-3)).any(-1)
    share = off.float().mean().item()
    if share > 2e-3:
        return f"weights differ from torch's in {share:.2%} of the rows"
    ordered = indices.sort(-1).values
    return "an index comes twice" if bool((ordered[:, 1:] == ordered[:, :-1]).any()) else None


def run(options: argparse.Namespace, results: harness.Results) -> bool:
    timer = harness.Timer(options.device, evict=True, seconds=min(options.seconds, 1.0))
    print(f"{'topk_gate':>58}{'us':>9}{'topk':>9}{'x topk':>8}{'torch':>9}{'x torch':>8}")
    sound = True
    for name, rows, n, k, dtype, given in CASES:
        label = f"{rows}x{n} k={k} {str(dtype).removeprefix('torch.')} {name}"
        if results.out_of_time(label):
            continue
        generator = torch.Generator(device=options.device).manual_seed(1)
        x = torch.randn(rows, n, generator=generator, device=options.device).to(dtype)
        call = dict(given)
        if call.get("bias"):
            call["bias"] = torch.randn(n, generator=generator, device=options.device) * 0.1
        calls = {
            "ours": partial(torch_gpuprims.topk_gate, x, k, **call),
            "topk": partial(torch_gpuprims.topk, x, k),
            "torch": partial(torch_gate, x, k, **call),
        }
        wrong = verify(calls["ours"], calls["torch"])
        if wrong:
            print(f"{label:>58}   WRONG: {wrong}")
            sound = False
            continue
        us = timer.measure(calls)
        print(
            f"{label:>58}{us['ours']:9.1f}{us['topk']:9.1f}{us['ours'] / us['topk']:7.2f}x"
            f"{us['torch']:9.1f}{us['torch'] / us['ours']:7.1f}x",
            flush=True,
        )
        results.add("gate", {label: {key: round(value, 2) for key, value in us.items()}})
    return sound
