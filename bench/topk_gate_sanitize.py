"""Small topk_gate calls through every kernel, for compute-sanitizer; called by bench/topk_sanitize.py."""

import torch

import torch_gpuprims
from bench.topk_gate import torch_gate


def run_gate(generator: torch.Generator) -> None:
    sizes = [
        (5, 8, 2),
        (3, 7, 3),
        (9, 64, 6),
        (5, 256, 8),
        (3, 255, 8),
        (4, 512, 24),
        (3, 400, 40),
        (2, 2048, 64),
    ]
    for rows, n, k in sizes:
        for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
            x = torch.randn(rows, n, generator=generator).to(dtype)
            groups = {"num_groups": 4, "topk_groups": 3} if n % 4 == 0 and n // 4 * 3 >= k else {}
            bias = torch.randn(n, generator=generator)
            for scoring in ("softmax", "sigmoid"):
                check(x, k, {"scoring": scoring, "renormalize": False})
                check(x, k, {"scoring": scoring, "bias": bias, **groups})
            same = torch_gpuprims.topk_gate(torch.full_like(x, 2).cuda(), k)  # ties: the slow way of a bound
            assert torch.equal(same.indices.cpu(), torch.arange(k).expand(rows, k))
            odd = torch.cat([x.flatten()[:1], x.flatten()])[1:].view(x.shape).cuda()  # not aligned
            small = torch_gpuprims.topk_gate(odd, k, index_dtype=torch.int32)
            assert torch.equal(small.weights, torch_gpuprims.topk_gate(odd.clone(), k).weights)


def check(x: torch.Tensor, k: int, options: dict) -> None:
    moved = {name: o.cuda() if isinstance(o, torch.Tensor) else o for name, o in options.items()}
    weights = torch_gpuprims.topk_gate(x.cuda(), k, **moved).weights.cpu()
    expected = torch_gate(x, k, **options)[0]
    torch.testing.assert_close(weights.float(), expected.float(), rtol=1e-4, atol=1e-5)
