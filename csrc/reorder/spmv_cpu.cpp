// spmv and spmv_csr on the CPU. Sums go by the tree of layout.h, in float32 (float64: in float64),
// with every product rounded: the bits are those of the GPU.
#include <limits>

#include "reorder/cpu_data.h"
#include "reorder/spmv_ops.h"

namespace gpuprims::reorder {
namespace {

using torch::headeronly::BFloat16;
using torch::headeronly::Half;

template <class T>
using AccOf = std::conditional_t<std::is_same_v<T, double>, double, float>;

template <class T>
constexpr AccOf<T> kNaN = std::numeric_limits<AccOf<T>>::quiet_NaN();

template <class T, class Index>
void packed_strips(const SpmvArgs& args) {
  using Acc = AccOf<T>;
  const Packing& p = args.p;
  const auto* const values = static_cast<const T*>(args.values);
  const auto* const indices = static_cast<const Index*>(args.indices);
  const auto* const x = static_cast<const T*>(args.x);
  const auto* const start = static_cast<const T*>(args.start);
  auto* const out = static_cast<T*>(args.out);
  const int64_t columns = args.columns, m = args.m;
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
void csr_rows(const SpmvArgs& args) {
  using Acc = AccOf<T>;
  const Packing& p = args.p;
  const auto* const values = static_cast<const T*>(args.values);
  const auto* const indices = static_cast<const Index*>(args.indices);
  const auto* const x = static_cast<const T*>(args.x);
  auto* const out = static_cast<T*>(args.out);
  const int64_t columns = args.columns, m = args.m;
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

// f(element, index) with the types of values and indices.
template <class F>
void with_types(const SpmvArgs& args, const F& f) {
  const auto with_index = [&](auto element) {
    args.wide_indices ? f(element, int64_t{}) : f(element, int32_t{});
  };
  if (args.dtype == Dtype::f32) return with_index(float{});
  if (args.dtype == Dtype::f64) return with_index(double{});
  if (args.dtype == Dtype::f16) return with_index(Half{});
  with_index(BFloat16{});
}

// False where there is nothing to add up.
bool prepare(const char* op, const SpmvArgs& args, Tensor& out, bool with_rows, int64_t promises) {
  const int64_t bytes = dtype_bytes(args.dtype), count = out.numel();
  if (!good_data(op, args.p, with_rows, promises)) {
    fill_bad(args.out, bytes, count, bad_bits(out.scalar_type()));
    return false;
  }
  if (args.p.order && !(promises & kChecked))  // rows may repeat
    std::memset(args.out, 0, static_cast<size_t>(count * bytes));
  return count > 0;
}

struct Cpu {
  using Guard = NoGuard;
  static constexpr int64_t kMostColumns = INT64_MAX;

  static void spmv(const char* op, const SpmvArgs& args, Tensor& out, int64_t promises) {
    if (!prepare(op, args, out, false, promises)) return;
    with_types(args, [&](auto element, auto index) {
      packed_strips<decltype(element), decltype(index)>(args);
    });
  }

  static void spmv_csr(const char* op, const SpmvArgs& args, Tensor& out, int64_t promises) {
    if (!prepare(op, args, out, true, promises)) return;
    with_types(args, [&](auto element, auto index) {
      csr_rows<decltype(element), decltype(index)>(args);
    });
  }
};

}  // namespace
}  // namespace gpuprims::reorder

STABLE_TORCH_LIBRARY_IMPL(gpuprims, CPU, m) {
  gpuprims::reorder::register_products<gpuprims::reorder::Cpu>(m);
}
