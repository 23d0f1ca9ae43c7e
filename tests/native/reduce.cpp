// The reductions' layouts and plans: plan_reduce(op, dtype, sizes, strides, dims, ...).
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "reduce/args.h"

namespace py = pybind11;
using namespace gpuprims;

namespace {

Dtype dtype_named(const std::string& name) {
  for (int tag = 0; tag <= static_cast<int>(Dtype::boolean); ++tag)
    if (name == dtype_name(static_cast<Dtype>(tag))) return static_cast<Dtype>(tag);
  throw py::value_error("no dtype named " + name);
}

// op: a code of ReduceOp.
py::dict plan(int op, const std::string& dtype, const std::vector<int64_t>& sizes,
              const std::vector<int64_t>& strides, const std::vector<int>& dims, int sms,
              int chunks) {
  using py::literals::operator""_a;
  bool reduced[64] = {};
  for (int d : dims) reduced[d] = true;
  const auto code = static_cast<ReduceOp>(op);
  const Dtype type = dtype_named(dtype);
  ReduceLayout layout;
  const bool fits = make_layout(sizes.data(), strides.data(), static_cast<int64_t>(sizes.size()),
                                reduced, is_arg(code), layout);
  if (!fits) return py::dict("fits"_a = false);
  ReduceArgs args = args_for(code, type, type, 1.0);
  set_layout(args, family_of(code), layout);
  ReduceProblem problem = problem_for(args, family_of(code), sms);
  problem.forced_chunks = chunks;
  const ReducePlan p = plan_reduce(problem);
  return py::dict(
      "fits"_a = true, "algo"_a = reduce_algo_name(p.algo), "grid"_a = p.grid,
      "threads"_a = p.threads, "per"_a = p.per, "parts"_a = p.parts, "lanes"_a = p.lanes,
      "columns"_a = p.columns, "rows"_a = p.rows, "pieces"_a = p.pieces, "shared"_a = p.shared,
      "wide"_a = p.wide, "tiles"_a = p.tiles, "loads"_a = p.loads, "row_loads"_a = p.row_loads,
      "tickets"_a = p.tickets, "workspace"_a = p.workspace, "kept_dims"_a = layout.kept_dims,
      "reduced_dims"_a = layout.reduced_dims, "n"_a = layout.n, "results"_a = layout.columns);
}

}  // namespace

void bind_reduce(py::module_& m) {
  m.def("plan_reduce", &plan, py::arg("op"), py::arg("dtype"), py::arg("sizes"), py::arg("strides"),
        py::arg("dims"), py::arg("sms") = 132, py::arg("chunks") = 0);
}
