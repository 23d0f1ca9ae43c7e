// Between tensors and the arguments of kernels, on either device.
#pragma once
#include "common/bad_data.h"
#include "reorder/args.h"
#include "reorder/checks.h"

namespace gpuprims::reorder {

// Whether the data must be looked at before it is believed.
inline bool must_look(int64_t promises) { return !(promises & kChecked) || raise_on_bad_data(); }

inline Tensor dense(const Tensor& t) {
  return t.is_contiguous() ? t : torch::stable::contiguous(t);
}
inline MaybeTensor dense(const MaybeTensor& t) { return t ? MaybeTensor(dense(*t)) : t; }

inline int64_t element_bytes(ScalarType t) {
  return static_cast<int64_t>(aoti_torch_dtype_element_size(static_cast<int32_t>(t)));
}

inline int64_t features_of(const Tensor& t) {
  int64_t count = 1;
  for (int64_t d = 1; d < t.dim(); ++d) count *= t.size(d);
  return count;
}

// [rows, features of like...], uninitialised.
inline Tensor rows_like(const char* op, const Tensor& like, int64_t rows) {
  int64_t shape[kMaxDims];
  check(like.dim() <= kMaxDims, op, ": at most ", kMaxDims, " dimensions are supported, got ",
        like.dim());
  shape[0] = rows;
  for (int64_t d = 1; d < like.dim(); ++d) shape[d] = like.size(d);
  return empty(op, like, like.scalar_type(), shape, like.dim());
}

// What outputs hold where the data is bad: NaN, integers 0; 8 bytes of it (elements repeat in
// them).
inline uint64_t bad_bits(ScalarType t) {
  switch (t) {
    case ScalarType::Half:
    case ScalarType::ComplexHalf:
      return 0x7e007e007e007e00ull;
    case ScalarType::BFloat16:
      return 0x7fc07fc07fc07fc0ull;
    case ScalarType::Float:
    case ScalarType::ComplexFloat:
      return 0x7fc000007fc00000ull;
    case ScalarType::Double:
    case ScalarType::ComplexDouble:
      return 0x7ff8000000000000ull;
    default:
      return 0;
  }
}

// Tensors of a packing, kept alive while a call lasts.
struct PackingTensors {
  PackingTensors(const Tensor& p, const MaybeTensor& s, const MaybeTensor& o, const MaybeTensor& u,
                 int64_t slots, int64_t entries, int64_t promises)
      : indptr(dense(p)), slices(dense(s)), order(dense(o)), units(dense(u)) {
    at.indptr = indptr.const_data_ptr();
    at.wide = indptr.scalar_type() == ScalarType::Long;
    at.rows = indptr.size(0) - 1;
    at.slots = slots;
    at.entries = entries;
    if (slices)
      at.slices = static_cast<const int64_t*>(slices->const_data_ptr());
    else
      at.longest = at.rows > 0 ? slots / at.rows : 0;
    if (order) at.order = order->const_data_ptr();
    if (units && !must_look(promises)) {
      at.units = static_cast<const int32_t*>(units->const_data_ptr());
      at.unit_count = units->size(1);
    }
  }
  Tensor indptr;
  MaybeTensor slices, order, units;
  Packing at;
};

}  // namespace gpuprims::reorder
