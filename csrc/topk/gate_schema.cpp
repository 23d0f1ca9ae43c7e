#include "common/stable.h"

// scoring is 0 (softmax) or 1 (sigmoid), index_bits 64 or 32. No gradient reaches bias.
STABLE_TORCH_LIBRARY_FRAGMENT(gpuprims, m) {
  m.def(
      "topk_gate(Tensor logits, SymInt k, Tensor? bias=None, int scoring=0, bool renormalize=True, "
      "int num_groups=1, int topk_groups=1, float scale=1.0, int index_bits=64) -> (Tensor "
      "weights, Tensor indices)");
}
