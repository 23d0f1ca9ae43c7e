#include "common/stable.h"

// Candidates lie along the last dimension of values, beside their global indices (negative: none).
// Of equal values the lowest index is the better; positions tells where each winner lay.
STABLE_TORCH_LIBRARY_FRAGMENT(gpuprims, m) {
  m.def(
      "merge_topk(Tensor values, Tensor indices, SymInt k, bool largest=True) -> (Tensor values, "
      "Tensor indices, Tensor positions)");
}
