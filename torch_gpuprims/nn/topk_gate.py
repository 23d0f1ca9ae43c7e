"""topk_gate as a module."""

from collections.abc import Callable
from typing import Any

import torch

from ..topk_gate import SCORING, topk_gate
from ..topk_gate import TopKGate as Result


class TopKGate(torch.nn.Module):
    """A router over logits: forward(logits [..., experts]) as torch_gpuprims.topk_gate, with these options.

    Args:
        num_experts: keep a correction bias of that many experts as the buffer `bias`, float32 zeros at first.
            It chooses and does not weigh, and has no gradient: whoever balances the load writes to it. It
            keeps its dtype where the module's is changed: half(), to(torch.bfloat16). None: no bias.

    >>> gate = TopKGate(2, scoring="sigmoid", num_experts=4)
    >>> gate.bias += torch.tensor([1.0, 0.0, 0.0, 0.0])
    >>> gate(torch.tensor([[0.0, 1.0, 3.0, 1.0]])).indices
    tensor([[0, 2]])
    """

    bias: torch.Tensor | None

    def __init__(
        self,
        k: int,
        *,
        scoring: str = "softmax",
        num_experts: int | None = None,
        renormalize: bool = True,
        num_groups: int = 1,
        topk_groups: int = 1,
        scale: float = 1.0,
        index_dtype: torch.dtype = torch.int64,
    ) -> None:
        super().__init__()
        if scoring not in SCORING:
            raise ValueError(f"TopKGate: scoring must be one of {', '.join(SCORING)}, got {scoring!r}")
        self.k = k
        self.scoring = scoring
        self.renormalize = renormalize
        self.num_groups = num_groups
        self.topk_groups = topk_groups
        self.scale = scale
        self.index_dtype = index_dtype
        self.register_buffer("bias", None if num_experts is None else torch.zeros(num_experts))

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> "TopKGate":
        bias = self.bias
        super()._apply(fn, recurse)
        if bias is not None and self.bias is not None and self.bias.dtype != bias.dtype:
            self.bias = bias.to(self.bias.device)  # 16 bits would lose the small steps that balance the load
        return self

    def forward(self, logits: torch.Tensor) -> Result:
        return topk_gate(
            logits, self.k, scoring=self.scoring, bias=self.bias, renormalize=self.renormalize,
            num_groups=self.num_groups, topk_groups=self.topk_groups, scale=self.scale,
            index_dtype=self.index_dtype,
        )  # fmt: skip

    def extra_repr(self) -> str:
        return (
            f"k={self.k}, scoring={self.scoring!r}, bias={self.bias is not None}, "
            f"renormalize={self.renormalize}, num_groups={self.num_groups}, topk_groups={self.topk_groups}, "
            f"scale={self.scale}, index_dtype={self.index_dtype}"
        )
