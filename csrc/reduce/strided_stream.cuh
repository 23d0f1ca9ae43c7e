// Positions of the greatest elements of columns of float32, a row at a time: as soon as a row has
// been looked at, the one 8 rows on is loaded into its registers.
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

// All of a thread's pieces, each of which is whole. Without a branch: of 128 columns of a warp's
// some have a new greatest element in most batches. False where there is a NaN, whose position is
// not found so.
__device__ __forceinline__ bool stream_pieces(const ArgExtreme<float>& op, const ReduceArgs& args,
                                              const StridedShape& shape, const float* from,
                                              int64_t base, Placed<float> (&out)[4]) {
  const int count = shape.pieces * kPiece;
  const float* row = from + base * shape.step;
  Words lines[kBatch];
#pragma unroll
  for (int e = 0; e < kBatch; ++e, row += shape.step) lines[e] = load_words(row);
  float best[4];
  uint32_t where[4] = {};
#pragma unroll
  for (int v = 0; v < 4; ++v) best[v] = op.pad();
#pragma unroll 1
  for (int p = 0; p < count; p += kBatch) {
#pragma unroll
    for (int e = 0; e < kBatch; ++e, row += shape.step) {
#pragma unroll
      for (int v = 0; v < 4; ++v) {
        const float x = mirror(word_as_float(lines[e].w[v]), args.decode);
        if (x > best[v]) where[v] = p + e;
        best[v] = greater_of(best[v], x);
      }
      reload_words(lines[e], row, p + kBatch < count);
    }
  }
  bool nan = false;
#pragma unroll
  for (int v = 0; v < 4; ++v) {
    nan |= is_nan(best[v]);
    out[v] = {best[v], base + where[v]};
  }
  return !nan;
}

}  // namespace gpuprims
