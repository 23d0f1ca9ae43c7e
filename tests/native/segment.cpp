// segment_topk's plan, as a dictionary: plan_segment(dtype, n, segments, k, sms, look, promises).
#include <pybind11/pybind11.h>

#include "topk/missing.h"
#include "topk/segment_plan.h"

namespace py = pybind11;
using namespace gpuprims;

namespace {

Dtype dtype_called(const std::string& name) {
  for (int tag = 0; tag <= static_cast<int>(Dtype::boolean); ++tag)
    if (name == dtype_name(static_cast<Dtype>(tag))) return static_cast<Dtype>(tag);
  throw py::value_error("no dtype named " + name);
}

py::dict plan(const std::string& dtype, int64_t n, int64_t segments, int64_t k, int sms, int smem,
              bool look, int64_t promises) {
  const SegmentPlan p =
      plan_segment_topk({dtype_called(dtype), n, segments, k, sms, smem, look, promises});
  using py::literals::operator""_a;
  return py::dict(
      "wide"_a = p.wide, "prepare"_a = p.prepare, "width"_a = p.width, "passes"_a = p.passes,
      "small"_a = p.small, "group"_a = p.group, "small_blocks"_a = p.small_blocks,
      "medium_limit"_a = p.medium_limit, "medium"_a = p.medium, "medium_blocks"_a = p.medium_blocks,
      "medium_capacity"_a = p.medium_capacity, "big"_a = p.big, "chunk"_a = p.chunk,
      "chunks"_a = p.chunks, "item_blocks"_a = p.item_blocks, "capacity"_a = p.capacity,
      "smem"_a = stream_memory(p.capacity, p.width, segment_tuning::kItemThreads, p.wide ? 16 : 8),
      "fan"_a = p.fan, "rounds"_a = p.rounds, "reset"_a = p.reset, "pairs_at"_a = p.pairs_at,
      "ceilings_at"_a = p.ceilings_at, "workspace"_a = p.workspace);
}

}  // namespace

void bind_segment(py::module_& m) {
  m.def("plan_segment", &plan, py::arg("dtype"), py::arg("n"), py::arg("segments"), py::arg("k"),
        py::arg("sms") = 132, py::arg("smem") = 227 << 10, py::arg("look") = true,
        py::arg("promises") = 0);
  m.def("missing_bits", [](const std::string& dtype, bool largest) {
    return missing_bits(dtype_called(dtype), largest);
  });
}
