// Whole pieces of columns, whose rows reach a thread by way of shared memory.
#pragma once
#include "reduce/async.cuh"
#include "reduce/strided_pieces.cuh"

namespace gpuprims {

// What has more to do than to add, or to compare: while it does, its next rows are on their way.
template <class Op, class Raw, int Wide>
constexpr bool kRings =
    std::is_same_v<Raw, float> && std::is_same_v<typename Op::Value, float> && Wide == 4 &&
    !kAdds<Op> && !std::is_same_v<Op, Extreme<float>> && !std::is_same_v<Op, PlacedStats<float>>;

constexpr int ring_bytes(int depth, int threads) { return depth * kBatch * 16 * threads; }

// A thread's batches of rows on their way past its registers: `depth` of them, 2 or 3. It asks for
// one more before it waits for the next, into the place of the one before, which it has done with;
// nobody else reads what it has asked for, so there is no barrier.
struct RowRing {
  static constexpr int kWarpBatch = kBatch * 32 * 16;  // bytes
  SharedAt slots;
  const float* row;
  int64_t step;
  int left, depth;  // batches to be asked for
  int put = 0, got = 0;

  __device__ __forceinline__ RowRing(const StridedShape& shape, const float* from, int64_t base)
      : slots(shared_at(dynamic_memory + threadIdx.x / 32 * shape.ring * kWarpBatch +
                        threadIdx.x % 32 * 16)),
        row(from + base * shape.step),
        step(shape.step),
        left(shape.pieces * (kPiece / kBatch)),
        depth(shape.ring) {
#pragma unroll 1
    for (int i = 1; i < depth; ++i) ask();
  }
  __device__ __forceinline__ void ask() {
    if (left > 0) {
#pragma unroll
      for (int e = 0; e < kBatch; ++e, row += step)
        copy_async<16>(slots + put * kWarpBatch + e * 512, row);
      --left;
      put = put + 1 == depth ? 0 : put + 1;
    }
    copy_commit();
  }
  __device__ __forceinline__ SharedAt next() {
    ask();
    if (depth == 2)
      copy_wait<1>();
    else
      copy_wait<2>();
    const SharedAt batch = slots + got * kWarpBatch;
    got = got + 1 == depth ? 0 : got + 1;
    return batch;
  }
  static __device__ __forceinline__ Words line(SharedAt batch, int e) {
    return load_shared(batch + e * 512);
  }
};

// A batch of whole rows from position p of its piece on (of ArgExtreme: of all pieces) enters.
template <class Op>
__device__ __forceinline__ void add_ring_batch(const Op& op, const Decode& d, SharedAt batch, int p,
                                               PieceBundle<Op> (&bundles)[4]) {
  Words lines[kBatch];
#pragma unroll
  for (int e = 0; e < kBatch; ++e) lines[e] = RowRing::line(batch, e);
  float x[4][kBatch];
#pragma unroll
  for (int v = 0; v < 4; ++v)
#pragma unroll
    for (int e = 0; e < kBatch; ++e) x[v][e] = element<Op>(word_as_float(lines[e].w[v]), d);
  if constexpr (requires { bundles[0].sums; }) {
    if (p == 0) {
#pragma unroll
      for (int v = 0; v < 4; ++v) bundles[v].sums.set_k(mean_of(x[v]));
    }
#pragma unroll
    for (int v = 0; v < 4; ++v) bundles[v].sums.add_whole(x[v]);
  }
  if constexpr (requires { bundles[0].nans; }) {
    float high[4];
#pragma unroll
    for (int v = 0; v < 4; ++v) high[v] = bundles[v].widen(x[v]);
    const float most = greater_of(greater_of(high[0], high[1]), greater_of(high[2], high[3]));
    if (!is_nan(most)) return;
#pragma unroll 1
    for (int e = 0; e < kBatch; ++e) {  // rare
      const Words line = RowRing::line(batch, e);
#pragma unroll
      for (int v = 0; v < 4; ++v) bundles[v].nans += is_nan(word_as_float(line.w[v])) ? 1 : 0;
    }
  } else if constexpr (!requires { bundles[0].sums; }) {
#pragma unroll
    for (int v = 0; v < 4; ++v)
      bundles[v].add(op, x[v], Rows{static_cast<uint32_t>(p), 0}, kAllValid);
  }
}

// All of a thread's pieces, each of which is whole. The tree is that of add_pieces; an ArgExtreme,
// which has none, keeps its best over all pieces, so that a new one is rarer.
template <class Op>
__device__ __forceinline__ void add_ring_pieces(const Op& op, const ReduceArgs& args,
                                                const StridedShape& shape, const float* from,
                                                int64_t base, typename Op::State (&out)[4]) {
  using Bundle = PieceBundle<Op>;
  RowRing ring(shape, from, base);
  Bundle bundles[4];
#pragma unroll
  for (int v = 0; v < 4; ++v) bundles[v].begin(op, 0);
  const auto add_piece = [&](int first) {
#pragma unroll 1
    for (int p = 0; p < kPiece; p += kBatch)
      add_ring_batch(op, args.decode, ring.next(), first + p, bundles);
  };
  if constexpr (std::is_same_v<Op, ArgExtreme<float>>) {
#pragma unroll 1
    for (int i = 0; i < shape.pieces; ++i) add_piece(i * kPiece);
#pragma unroll
    for (int v = 0; v < 4; ++v) out[v] = bundles[v].close(op, base, 0);
  } else if constexpr (requires(Bundle& bundle) { bundle.take(0); }) {
    Shifted<float> ordered[4];
    pair_pieces(
        shape.pieces, ordered,
        [&](int) {
          add_piece(0);
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
          add_piece(0);
#pragma unroll
          for (int v = 0; v < 4; ++v) {
            out[v] = bundles[v].close(op, 0, kPiece);
            bundles[v].begin(op, 0);
          }
        },
        [&](const auto& a, const auto& b) { return op.combine(a, b); });
  }
}

}  // namespace gpuprims
