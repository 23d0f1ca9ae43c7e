#include "common/stable.h"

STABLE_TORCH_LIBRARY_FRAGMENT(gpuprims, m) {
  // A label [rows] int32 for each node of a graph whose sources are its rows (labels.h).
  //   method: 0 majority, 1 grow (every `spacing`-th node is a seed; 2^31 - 1 where none is near).
  m.def(
      "_graph_labels(Tensor indptr, Tensor indices, int method, int rounds, int spacing=1) -> "
      "Tensor");
}
