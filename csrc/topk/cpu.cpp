#include <algorithm>
#include <numeric>

#include "common/radix_keys.h"
#include "topk/checks.h"

namespace gpuprims {
std::tuple<Tensor, Tensor> topk_cpu(const Tensor& input, int64_t k, int64_t dim, bool largest, bool sorted,
                                    const std::optional<Tensor>& mask, int64_t index_bits) {
  const TopkShape shape = check_topk(input, k, dim, mask, index_bits);
  Tensor values = empty("topk", input, input.scalar_type(), shape.output.data(), shape.output.size());
  Tensor indices = empty("topk", input, index_bits == 64 ? ScalarType::Long : ScalarType::Int, shape.output.data(),
                         shape.output.size());
  return {values, indices};
}
}  // namespace gpuprims

STABLE_TORCH_LIBRARY_IMPL(gpuprims, CPU, m) { m.impl("topk", TORCH_BOX(&gpuprims::topk_cpu)); }
