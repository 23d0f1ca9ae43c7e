// topk's plan, as a dictionary: plan_topk(dtype, rows, n, k, sms, forced).
#include <pybind11/pybind11.h>

#include "topk/plan.h"

namespace py = pybind11;
using namespace gpuprims;

namespace {

template <class Enum>
Enum named(const std::string& name, const char* (*text)(Enum), int count) {
  for (int tag = 0; tag < count; ++tag)
    if (name == text(static_cast<Enum>(tag))) return static_cast<Enum>(tag);
  throw py::value_error("unknown name " + name);
}

py::dict plan(const std::string& dtype, int64_t rows, int64_t n, int64_t k, int sms,
              const std::string& forced, bool vectors, bool masked, int64_t inner, int index_bits) {
  TopkProblem problem;
  problem.dtype = named<Dtype>(dtype, dtype_name, static_cast<int>(Dtype::boolean) + 1);
  problem.rows = rows;
  problem.n = n;
  problem.k = k;
  problem.sms = sms;
  problem.forced = named<TopkAlgo>(forced, topk_algo_name, kTopkAlgos);
  problem.vectors = vectors;
  problem.masked = masked;
  problem.inner = inner;
  problem.index_bits = index_bits;
  const TopkPlan p = plan_topk(problem);
  using py::literals::operator""_a;
  return py::dict("algo"_a = topk_algo_name(p.algo), "threads"_a = p.threads, "grid"_a = p.grid,
                  "wide"_a = p.wide, "lanes"_a = p.lanes, "tile"_a = p.tile, "splits"_a = p.splits,
                  "chunk"_a = p.chunk, "smem"_a = p.smem, "workspace"_a = p.workspace,
                  "filtered"_a = p.filtered, "traffic"_a = p.traffic);
}

}  // namespace

void bind_topk(py::module_& m) {
  m.def("plan_topk", &plan, py::arg("dtype"), py::arg("rows"), py::arg("n"), py::arg("k"),
        py::arg("sms") = 132, py::arg("forced") = "automatic", py::arg("vectors") = false,
        py::arg("masked") = false, py::arg("inner") = 1, py::arg("index_bits") = 64);
  m.def("topk_algorithms", [] {
    py::list names;
    for (int tag = 0; tag < kTopkAlgos; ++tag)
      names.append(topk_algo_name(static_cast<TopkAlgo>(tag)));
    return names;
  });
}
