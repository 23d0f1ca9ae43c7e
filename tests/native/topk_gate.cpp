// topk_gate's plan, as a dictionary.
#include <pybind11/pybind11.h>

#include "topk/gate_plan.h"

namespace py = pybind11;
using namespace gpuprims;

namespace {

py::dict plan(bool wide, int bytes, int64_t rows, int64_t n, int64_t k, int64_t num_groups,
              int64_t topk_groups, bool biased) {
  const Dtype dtype = wide ? Dtype::f64 : bytes == 2 ? Dtype::bf16 : Dtype::f32;
  const GatePlan p = plan_gate({dtype, rows, n, k, num_groups, topk_groups, biased});
  using py::literals::operator""_a;
  return py::dict("algo"_a = gate_algo_name(p.algo), "lanes"_a = p.lanes, "threads"_a = p.threads,
                  "grid"_a = p.grid, "grouped"_a = p.grouped, "group_lanes"_a = p.group_lanes,
                  "warp_smem"_a = p.warp_smem, "smem"_a = p.smem, "traffic"_a = p.traffic);
}

}  // namespace

void bind_topk_gate(py::module_& m) {
  m.def("plan_gate", &plan, py::arg("wide"), py::arg("bytes"), py::arg("rows"), py::arg("n"),
        py::arg("k"), py::arg("num_groups") = 1, py::arg("topk_groups") = 1,
        py::arg("biased") = false);
}
