#include "common/stable.h"

// Counts of `bins` equal intervals of [lo, hi] (closed: hi belongs to the last one; otherwise it is
// outside). `range` [2], float64 on the input's device, takes the place of lo and hi.
STABLE_TORCH_LIBRARY_FRAGMENT(gpuprims, m) {
  m.def(
      "histogram(Tensor input, Tensor? range, SymInt bins, float lo, float hi, bool closed=True) "
      "-> "
      "Tensor");
}
