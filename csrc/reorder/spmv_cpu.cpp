// spmv and spmv_csr on the CPU. Sums go by the tree of layout.h, in float32 (float64: in float64),
// with every product rounded: the bits are those of the GPU.
#include <limits>
#include <vector>

#include "reorder/cpu_data.h"

namespace gpuprims::reorder {
namespace {

using torch::headeronly::BFloat16;
using torch::headeronly::Half;

template <class T>
using AccOf = std::conditional_t<std::is_same_v<T, double>, double, float>;

template <class F>
void for_float(ScalarType t, const F& f) {
  if (t == ScalarType::Float) return f(float{});
  if (t == ScalarType::Double) return f(double{});
  if (t == ScalarType::Half) return f(Half{});
  f(BFloat16{});
}

template <class Acc>
struct Sum {
  Acc piece = 0, group = 0, total = 0;
  // Closes what ends with `count` products added.
  void close(int64_t count) {
    if (count % kPiece == 0) group += piece, piece = 0;
    if (count % kGroup == 0) total += group, group = 0;
  }
  Acc end() const { return total + (group + piece); }
};

template <class T>
void packed_strips(const Packing& p, const T* values, const void* indices, bool wide, const T* x,
                   int64_t columns, int64_t m, const T* start, T* out) {
  using Acc = AccOf<T>;
  torch::stable::parallel_for(
      0, strips_of(p.rows), strips_a_task(p, 4 * m), [&](int64_t first, int64_t last) {
        for (int64_t s = first; s < last; ++s) {
          const Strip strip = strip_at(p, s);
          const int lanes = static_cast<int>(std::min<int64_t>(kStrip, p.rows - s * kStrip));
          for (int64_t c = 0; c < m; ++c) {
            Sum<Acc> sums[kStrip];
            for (int64_t i = 0; i < strip.width; ++i) {
              const int64_t slot = strip.base + i * strip.stride;
              for (int lane = 0; lane < lanes; ++lane) {
                const int64_t column = int_at(indices, wide, slot + lane);
                if (column >= 0 && column < columns)
                  sums[lane].piece +=
                      static_cast<Acc>(values[slot + lane]) * static_cast<Acc>(x[column * m + c]);
                else if (column != -1)
                  sums[lane].piece = std::numeric_limits<Acc>::quiet_NaN();
              }
              if ((i + 1) % kPiece == 0)
                for (int lane = 0; lane < lanes; ++lane) sums[lane].close(i + 1);
            }
            for (int lane = 0; lane < lanes; ++lane) {
              const int64_t at = row_at(p, s * kStrip + lane) * m + c;
              const Acc sum = sums[lane].end();
              out[at] = static_cast<T>(start ? static_cast<Acc>(start[at]) + sum : sum);
            }
          }
        }
      });
}

template <class T>
void csr_rows(const Packing& p, const T* values, const void* indices, bool wide, const T* x,
              int64_t columns, int64_t m, T* out) {
  using Acc = AccOf<T>;
  const int64_t mean = p.entries / std::max<int64_t>(p.rows, 1) + 1;
  const int64_t grain = std::max<int64_t>(1, (1 << 14) / (mean * std::max<int64_t>(m, 1)));
  torch::stable::parallel_for(0, p.rows, grain, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      const int64_t begin = int_at(p.indptr, p.wide, row), end = int_at(p.indptr, p.wide, row + 1);
      for (int64_t c = 0; c < m; ++c) {
        Sum<Acc> sum;
        for (int64_t e = begin; e < end; ++e) {
          const int64_t column = int_at(indices, wide, e);
          if (column >= 0 && column < columns)
            sum.piece += static_cast<Acc>(values[e]) * static_cast<Acc>(x[column * m + c]);
          else
            sum.piece = std::numeric_limits<Acc>::quiet_NaN();
          if ((e + 1 - begin) % kPiece == 0) sum.close(e + 1 - begin);
        }
        out[row * m + c] = static_cast<T>(sum.end());
      }
    }
  });
}

template <class T>
const T* data(const Tensor& t) {
  return static_cast<const T*>(t.const_data_ptr());
}

Tensor spmv_cpu(const Tensor& values_in, const Tensor& indices_in, const Tensor& indptr,
                const MaybeTensor& slices, const MaybeTensor& order, const MaybeTensor& units,
                const Tensor& x_in, const MaybeTensor& start_in, const MaybeTensor& t_indptr,
                const MaybeTensor& t_indices, const MaybeTensor& t_ids, int64_t promises) {
  constexpr auto op = "spmv";
  check_spmv(values_in, indices_in, indptr, slices, order, units, x_in, start_in);
  const Tensor values = dense(values_in), indices = dense(indices_in), x = dense(x_in);
  const MaybeTensor start = dense(start_in);
  const PackingTensors p(indptr, slices, order, units, values.size(0), 0, promises);
  Tensor out = rows_like(op, x, p.at.rows);
  if (!good_data(op, p.at, false, promises)) {
    fill_bad(out.mutable_data_ptr(), element_bytes(x.scalar_type()), out.numel(),
             bad_bits(x.scalar_type()));
    return out;
  }
  if (out.numel() == 0) return out;
  if (order && !(promises & kChecked))
    std::memset(out.mutable_data_ptr(), 0, out.numel() * element_bytes(x.scalar_type()));
  for_float(values.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    packed_strips<T>(p.at, data<T>(values), indices.const_data_ptr(),
                     indices.scalar_type() == ScalarType::Long, data<T>(x), x.size(0),
                     features_of(x), start ? data<T>(*start) : nullptr,
                     static_cast<T*>(out.mutable_data_ptr()));
  });
  return out;
}

Tensor spmv_csr_cpu(const Tensor& indptr_in, const Tensor& indices_in, const Tensor& values_in,
                    const Tensor& x_in, int64_t promises) {
  constexpr auto op = "spmv_csr";
  check_spmv_csr(indptr_in, indices_in, values_in, x_in);
  const Tensor values = dense(values_in), indices = dense(indices_in), x = dense(x_in);
  PackingTensors p(indptr_in, {}, {}, {}, 0, values.size(0), promises);
  p.at.longest = values.size(0);
  Tensor out = rows_like(op, x, p.at.rows);
  if (!good_data(op, p.at, true, promises)) {
    fill_bad(out.mutable_data_ptr(), element_bytes(x.scalar_type()), out.numel(),
             bad_bits(x.scalar_type()));
    return out;
  }
  if (out.numel() == 0) return out;
  for_float(values.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    csr_rows<T>(p.at, data<T>(values), indices.const_data_ptr(),
                indices.scalar_type() == ScalarType::Long, data<T>(x), x.size(0), features_of(x),
                static_cast<T*>(out.mutable_data_ptr()));
  });
  return out;
}

}  // namespace
}  // namespace gpuprims::reorder

STABLE_TORCH_LIBRARY_IMPL(gpuprims, CPU, m) {
  m.impl("spmv", TORCH_BOX(&gpuprims::reorder::spmv_cpu));
  m.impl("spmv_csr", TORCH_BOX(&gpuprims::reorder::spmv_csr_cpu));
}
