// Hands the torch-free host code of csrc to pytest: key codecs and plans.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include "common/radix_keys.h"

namespace py = pybind11;
using namespace gpuprims;

namespace {

Dtype dtype_named(const std::string& name) {
  for (int tag = 0; tag <= static_cast<int>(Dtype::boolean); ++tag)
    if (name == dtype_name(static_cast<Dtype>(tag))) return static_cast<Dtype>(tag);
  throw py::value_error("no dtype named " + name);
}

template <class Key>
using Bits = py::array_t<Key, py::array::c_style>;

template <class Key, class Function>
py::array_t<Key> map(const Bits<Key>& in, Function function) {
  py::array_t<Key> out(in.size());
  for (py::ssize_t i = 0; i < in.size(); ++i) out.mutable_data()[i] = function(in.data()[i]);
  return out;
}

// An overload for each width; noconvert keeps NumPy from widening the bits to the first that fits.
template <class Key>
void bind_codec(py::module_& m) {
  m.def(
      "encode",
      [](const Bits<Key>& bits, const std::string& dtype, bool largest) {
        const auto codec = make_codec<Key>(dtype_named(dtype), largest);
        return map<Key>(bits, [&](Key b) { return codec.encode(b); });
      },
      py::arg("bits").noconvert(), py::arg("dtype"), py::arg("largest"));
  m.def(
      "decode",
      [](const Bits<Key>& keys, const std::string& dtype, bool largest) {
        const auto codec = make_codec<Key>(dtype_named(dtype), largest);
        return map<Key>(keys, [&](Key key) { return codec.decode(key); });
      },
      py::arg("keys").noconvert(), py::arg("dtype"), py::arg("largest"));
}

}  // namespace

void bind_reduce(py::module_& m);
void bind_sort(py::module_& m);
void bind_topk(py::module_& m);
void bind_topk_gate(py::module_& m);
void bind_segment(py::module_& m);

PYBIND11_MODULE(gpuprims_native, m) {
  bind_codec<uint8_t>(m);
  bind_codec<uint16_t>(m);
  bind_codec<uint32_t>(m);
  bind_codec<uint64_t>(m);
  m.def("dtype_bytes", [](const std::string& dtype) { return dtype_bytes(dtype_named(dtype)); });
  bind_reduce(m);
  bind_sort(m);
  bind_topk(m);
  bind_topk_gate(m);
  bind_segment(m);
}
