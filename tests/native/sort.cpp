// The sorts' plans and codecs: plan_sort(dtype, rows, n, ...), plan_segments(dtype, n, segments).
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include "sort/order.h"
#include "sort/plan.h"

namespace py = pybind11;
using namespace gpuprims;

namespace {

Dtype dtype_named(const std::string& name) {
  for (int tag = 0; tag <= static_cast<int>(Dtype::boolean); ++tag)
    if (name == dtype_name(static_cast<Dtype>(tag))) return static_cast<Dtype>(tag);
  throw py::value_error("no dtype named " + name);
}

SortAlgo algo_named(const std::string& name) {
  for (int a = 0; a <= static_cast<int>(SortAlgo::sweep); ++a)
    if (name == sort_algo_name(static_cast<SortAlgo>(a))) return static_cast<SortAlgo>(a);
  throw py::value_error("no algorithm named " + name);
}

py::dict describe(const SortPlan& p) {
  using py::literals::operator""_a;
  return py::dict(
      "algo"_a = sort_algo_name(p.algo), "tile"_a = p.tile, "grid"_a = p.grid,
      "threads"_a = p.threads, "lanes"_a = p.lanes, "items"_a = p.items, "packed"_a = p.packed,
      "side"_a = p.side, "passes"_a = p.passes, "code_passes"_a = p.code_passes,
      "code_bits"_a = p.code_bits, "samples"_a = p.samples, "sample_threads"_a = p.sample_threads,
      "chunks"_a = p.chunks, "spread_bits"_a = p.spread_bits, "spread_low"_a = p.spread_low,
      "codes_at"_a = p.codes_at, "spread_tiles_at"_a = p.spread_tiles_at,
      "spread_windows_at"_a = p.spread_windows_at, "spread_crowded_at"_a = p.spread_crowded_at,
      "parts"_a = p.parts, "part_grid"_a = p.part_grid, "tiles"_a = p.tiles,
      "wide_status"_a = p.wide_status, "clear_bytes"_a = p.clear_bytes, "a_keys_at"_a = p.a_keys_at,
      "a_side_at"_a = p.a_side_at, "workspace"_a = p.workspace, "traffic"_a = p.traffic);
}

py::dict plan(const std::string& dtype, int64_t rows, int64_t n, bool values, bool indices,
              int index_bits, int sms, const std::string& forced, int spread) {
  const Dtype type = dtype_named(dtype);
  return describe(plan_sort({type, rows, n, values, indices, index_bits, 0, dtype_bytes(type) * 8,
                             sms, algo_named(forced), false, -1, -1, spread}));
}

py::dict segments(const std::string& dtype, int64_t n, int64_t count) {
  const Dtype type = dtype_named(dtype);
  const SegmentSortPlan p =
      plan_segments({type, 1, n, true, true, 64, 0, dtype_bytes(type) * 8, 132}, count);
  py::dict result = describe(p.sweep);
  py::list capacity;
  for (int64_t room : p.capacity) capacity.append(room);
  result["capacity"] = capacity;
  result["total"] = p.workspace;
  return result;
}

// Codec for whole numbers of `width` bytes held in 64 bits.
template <class Key, class Word>
py::array_t<uint64_t> code(const py::array_t<uint64_t>& bits, const std::string& dtype,
                           bool descending, bool lossless, bool decode) {
  OrderParams<Word> order;
  set_order<Key>(order, dtype_named(dtype), descending, lossless);
  py::array_t<uint64_t> out(bits.size());
  for (py::ssize_t i = 0; i < bits.size(); ++i) {
    const Word word = static_cast<Word>(bits.data()[i]);
    out.mutable_data()[i] = decode ? order.decode(word) : order.encode(word);
  }
  return out;
}

}  // namespace

void bind_sort(py::module_& m) {
  m.def("plan_sort", &plan, py::arg("dtype"), py::arg("rows"), py::arg("n"),
        py::arg("values") = true, py::arg("indices") = true, py::arg("index_bits") = 64,
        py::arg("sms") = 132, py::arg("forced") = "automatic", py::arg("spread") = -1);
  m.def("plan_segments", &segments, py::arg("dtype"), py::arg("n"), py::arg("segments"));
  m.def("sort_code", [](const py::array_t<uint64_t>& bits, const std::string& dtype,
                        bool descending, bool lossless, bool decode) {
    switch (dtype_bytes(dtype_named(dtype))) {
      case 1:
        return code<uint8_t, uint32_t>(bits, dtype, descending, lossless, decode);
      case 2:
        return code<uint16_t, uint32_t>(bits, dtype, descending, lossless, decode);
      case 4:
        return code<uint32_t, uint32_t>(bits, dtype, descending, lossless, decode);
      default:
        return code<uint64_t, uint64_t>(bits, dtype, descending, lossless, decode);
    }
  });
}
