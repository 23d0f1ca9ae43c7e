// Whole pieces of columns, a row at a time: as soon as a row has entered, the one 8 rows on is
// asked for, into its registers. So 8 rows are on their way nearly always, where a batch that is
// loaded, then added up, leaves memory alone meanwhile.
#pragma once
#include "reduce/strided_pieces.cuh"

namespace gpuprims {

// Loads where it is wanted. Volatile, or else loads would be moved to where they are used.
__device__ __forceinline__ void reload_words(Words& v, const float* at, bool wanted) {
#if defined(__CUDA_ARCH__)
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.s32 p, %5, 0;\n"
      "@p ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];\n}"
      : "+r"(v.w[0]), "+r"(v.w[1]), "+r"(v.w[2]), "+r"(v.w[3])
      : "l"(at), "r"(static_cast<int>(wanted)));
#else
  if (wanted) memcpy(&v, at, sizeof v);
#endif
}

struct RowStream {
  const float* row;  // to be asked for next
  int64_t step;
  int left;  // batches to be asked for
  Words lines[kBatch];

  __device__ __forceinline__ RowStream(const float* first, int64_t step, int batches)
      : row(first), step(step), left(batches) {
#pragma unroll
    for (int e = 0; e < kBatch; ++e) lines[e] = load_words(row + e * step);
    row += kBatch * step;
    --left;
  }
  __device__ __forceinline__ void refill(int e) {
    reload_words(lines[e], row, left > 0);
    row += step;
  }
  __device__ __forceinline__ float at(int e, int v) const { return word_as_float(lines[e].w[v]); }
};

template <class Sums>
__device__ __forceinline__ void add_deviation(Sums& sums, float x) {
  const float d = x - sums.k;
  sums.s += d;
  sums.q += d * d;
}

// k as ShiftedSums has it of the first 8.
template <class Bundle>
__device__ __forceinline__ void set_means(const RowStream& rows, Bundle (&bundles)[4]) {
#pragma unroll
  for (int v = 0; v < 4; ++v) {
    float mean = 0;
#pragma unroll
    for (int e = 0; e < kBatch; ++e) mean += rows.at(e, v) * (1.0f / kBatch);
    bundles[v].sums.set_k(mean);
  }
}

// A batch enters; position p of ArgExtreme counts from the first piece on.
template <class Op>
__device__ __forceinline__ void add_batch(const Op&, const Decode&, RowStream& rows, int,
                                          PieceBundle<Op> (&bundles)[4]) {
  constexpr bool kStats = requires { bundles[0].nans; };
  float high[4];
#pragma unroll
  for (int e = 0; e < kBatch; ++e) {
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      const float x = rows.at(e, v);
      add_deviation(bundles[v].sums, x);
      if constexpr (kStats) {
        high[v] = e == 0 ? x : greater_of(high[v], x);
        bundles[v].least = greater_of(bundles[v].least, -x);
      }
    }
    rows.refill(e);
  }
  if constexpr (kStats) {
#pragma unroll
    for (int v = 0; v < 4; ++v) bundles[v].most = greater_of(bundles[v].most, high[v]);
    if (!is_nan(greater_of(greater_of(high[0], high[1]), greater_of(high[2], high[3])))) return;
    const float* row = rows.row - 2 * kBatch * rows.step;
#pragma unroll 1
    for (int e = 0; e < kBatch; ++e, row += rows.step) {  // rare
      const Words line = load_words(row);
#pragma unroll
      for (int v = 0; v < 4; ++v) bundles[v].nans += is_nan(word_as_float(line.w[v])) ? 1 : 0;
    }
  }
}

template <>
__device__ __forceinline__ void add_batch(const LogSumExp<float>& op, const Decode&,
                                          RowStream& rows, int,
                                          PieceBundle<LogSumExp<float>> (&bundles)[4]) {
#pragma unroll
  for (int v = 0; v < 4; ++v) {
    float most = rows.at(0, v);
#pragma unroll
    for (int e = 1; e < kBatch; ++e) most = greater_of(most, rows.at(e, v));
    most = most < op.kMost ? most : op.kMost;
    const float m = bundles[v].m, raised = most > m ? most : m;
    // By 1 where it is none. Rounded by itself, as in a branch.
    bundles[v].s = product_of(bundles[v].s, exp_of(m - raised));
    bundles[v].m = raised;
  }
#pragma unroll
  for (int e = 0; e < kBatch; ++e) {
#pragma unroll
    for (int v = 0; v < 4; ++v) bundles[v].s += exp_of(rows.at(e, v) - bundles[v].m);
    rows.refill(e);
  }
}

// Without a branch: of 128 columns of a warp's some have a new greatest element in most batches. A
// NaN stays the best, at a position that is not its own.
template <>
__device__ __forceinline__ void add_batch(const ArgExtreme<float>&, const Decode& d,
                                          RowStream& rows, int p,
                                          PieceBundle<ArgExtreme<float>> (&bundles)[4]) {
#pragma unroll
  for (int e = 0; e < kBatch; ++e) {
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      const float x = mirror(rows.at(e, v), d);
      if (x > bundles[v].best) bundles[v].where = p + e;
      bundles[v].best = greater_of(bundles[v].best, x);
    }
    rows.refill(e);
  }
}

// All of a thread's pieces, each of which is whole, in the tree of add_pieces. False where they
// must be looked at again.
template <class Op>
__device__ __forceinline__ bool stream_pieces(const Op& op, const ReduceArgs& args,
                                              const StridedShape& shape, const float* from,
                                              int64_t base, typename Op::State (&out)[4]) {
  using Bundle = PieceBundle<Op>;
  constexpr int kBatches = kPiece / kBatch;
  RowStream rows(from + base * shape.step, shape.step, shape.pieces * kBatches);
  Bundle bundles[4];
#pragma unroll
  for (int v = 0; v < 4; ++v) bundles[v].begin(op, 0);
  const auto add = [&](int first, int batches) {
#pragma unroll 1
    for (int b = 0; b < batches; ++b, --rows.left)
      add_batch(op, args.decode, rows, first + b * kBatch, bundles);
  };
  if constexpr (std::is_same_v<Op, ArgExtreme<float>>) {  // has no tree
    add(0, shape.pieces * kBatches);
    bool nan = false;
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      nan |= is_nan(bundles[v].best);
      out[v] = bundles[v].close(op, base, 0);
    }
    return !nan;
  } else if constexpr (requires(Bundle& bundle) { bundle.take(0); }) {
    Shifted<float> ordered[4];
    pair_pieces(
        shape.pieces, ordered,
        [&](int) {
          set_means(rows, bundles);
          add(0, kBatches);
#pragma unroll
          for (int v = 0; v < 4; ++v) ordered[v] = bundles[v].take(kPiece);
        },
        [](const auto& a, const auto& b) { return join(a, b); });
#pragma unroll
    for (int v = 0; v < 4; ++v) out[v] = bundles[v].with(ordered[v]);
  } else {
    pair_pieces(
        shape.pieces, out,
        [&](int) {
          if constexpr (std::is_same_v<Op, Moments<float>>) set_means(rows, bundles);
          add(0, kBatches);
#pragma unroll
          for (int v = 0; v < 4; ++v) {
            out[v] = bundles[v].close(op, 0, kPiece);
            bundles[v].begin(op, 0);
          }
        },
        [&](const auto& a, const auto& b) { return op.combine(a, b); });
  }
  return true;
}

}  // namespace gpuprims
