// spmv and spmv_csr on the CPU. Sums go by the tree of layout.h, in float32 (float64: in float64),
// with every product rounded: the bits are those of the GPU.
#include <limits>

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

template <class F>
void for_index(const Tensor& indices, const F& f) {
  if (indices.scalar_type() == ScalarType::Long) return f(int64_t{});
  f(int32_t{});
}

template <class T>
constexpr AccOf<T> kNaN = std::numeric_limits<AccOf<T>>::quiet_NaN();

template <class T, class Index>
void packed_strips(const Packing& p, const T* values, const Index* indices, const T* x,
                   int64_t columns, int64_t m, const T* start, T* out) {
  using Acc = AccOf<T>;
  const auto run = [&](int64_t first, int64_t last) {
    for (int64_t s = first; s < last; ++s) {
      const Strip strip = strip_at(p, s);
      const int lanes = static_cast<int>(std::min<int64_t>(kStrip, p.rows - s * kStrip));
      for (int64_t c = 0; c < m; ++c) {
        Acc total[kStrip] = {}, group[kStrip] = {};
        for (int64_t i = 0; i < strip.width;) {
          Acc piece[kStrip] = {};
          const int64_t stop = std::min<int64_t>(i + kPiece, strip.width);
          for (; i < stop; ++i) {
            const int64_t slot = strip.base + i * strip.stride;
            for (int lane = 0; lane < lanes; ++lane) {
              const Index column = indices[slot + lane];
              if (column >= 0 && column < columns)
                piece[lane] +=
                    static_cast<Acc>(values[slot + lane]) * static_cast<Acc>(x[column * m + c]);
              else if (column != -1)
                piece[lane] = kNaN<T>;
            }
          }
          for (int lane = 0; lane < lanes; ++lane) {
            group[lane] += piece[lane];
            if (i % kGroup == 0) total[lane] += group[lane], group[lane] = 0;
          }
        }
        for (int lane = 0; lane < lanes; ++lane) {
          const int64_t at = row_at(p, s * kStrip + lane) * m + c;
          const Acc sum = total[lane] + group[lane];
          out[at] = static_cast<T>(start ? static_cast<Acc>(start[at]) + sum : sum);
        }
      }
    }
  };
  torch::stable::parallel_for(0, strips_of(p.rows), strips_a_task(p, 4 * m), run);
}

template <class T, class Index>
void csr_rows(const Packing& p, const T* values, const Index* indices, const T* x, int64_t columns,
              int64_t m, T* out) {
  using Acc = AccOf<T>;
  const auto run = [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      const int64_t begin = int_at(p.indptr, p.wide, row), end = int_at(p.indptr, p.wide, row + 1);
      for (int64_t c = 0; c < m; ++c) {
        Acc total = 0, group = 0;
        for (int64_t e = begin; e < end;) {
          Acc piece = 0;
          for (const int64_t stop = std::min(e + kPiece, end); e < stop; ++e) {
            const Index column = indices[e];
            if (column >= 0 && column < columns)
              piece += static_cast<Acc>(values[e]) * static_cast<Acc>(x[column * m + c]);
            else
              piece = kNaN<T>;
          }
          group += piece;
          if ((e - begin) % kGroup == 0) total += group, group = 0;
        }
        out[row * m + c] = static_cast<T>(total + group);
      }
    }
  };
  const int64_t mean = p.entries / std::max<int64_t>(p.rows, 1) + 1;
  const int64_t grain = std::max<int64_t>(1, (1 << 14) / (mean * std::max<int64_t>(m, 1)));
  torch::stable::parallel_for(0, p.rows, grain, run);
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
    for_index(indices, [&](auto index) {
      packed_strips(p.at, data<T>(values), data<decltype(index)>(indices), data<T>(x), x.size(0),
                    features_of(x), start ? data<T>(*start) : nullptr,
                    static_cast<T*>(out.mutable_data_ptr()));
    });
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
    for_index(indices, [&](auto index) {
      csr_rows(p.at, data<T>(values), data<decltype(index)>(indices), data<T>(x), x.size(0),
               features_of(x), static_cast<T*>(out.mutable_data_ptr()));
    });
  });
  return out;
}

}  // namespace
}  // namespace gpuprims::reorder

STABLE_TORCH_LIBRARY_IMPL(gpuprims, CPU, m) {
  m.impl("spmv", TORCH_BOX(&gpuprims::reorder::spmv_cpu));
  m.impl("spmv_csr", TORCH_BOX(&gpuprims::reorder::spmv_csr_cpu));
}
