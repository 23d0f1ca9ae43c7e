// From a problem's sizes to an algorithm, a grid and a workspace: a pure function, so that it can
// be tested and explained without a GPU. The reductions' tuning constants are here. Nothing that
// is decided here but `parts_of_row` changes the order of additions, and that looks at n alone.
#pragma once
#include <algorithm>
#include <bit>
#include <cstdint>

#include "common/dtype.h"
#include "reduce/layout.h"
#include "reduce/ops.h"

namespace gpuprims {

enum class ReduceAlgo : int32_t {
  none = 0,
  packed_rows = 1,  // a few lanes a row, which fits the slots of one warp
  long_rows = 2,    // a warp a chunk
  strided = 3,      // a thread a few columns, rows dealt to threads
};

constexpr const char* reduce_algo_name(ReduceAlgo algo) {
  constexpr const char* names[] = {"none", "packed_rows", "long_rows", "strided"};
  return names[static_cast<int>(algo)];
}

enum class ReduceFamily : int32_t { additive, extreme, arg, moments, logsumexp, stats, dot };

constexpr ReduceFamily family_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::max:
    case ReduceOp::min:
    case ReduceOp::any:
    case ReduceOp::all:
    case ReduceOp::norm_inf:
      return ReduceFamily::extreme;
    case ReduceOp::argmax:
    case ReduceOp::argmin:
      return ReduceFamily::arg;
    case ReduceOp::var:
    case ReduceOp::std:
      return ReduceFamily::moments;
    case ReduceOp::logsumexp:
      return ReduceFamily::logsumexp;
    default:
      return ReduceFamily::additive;
  }
}

namespace reduce_tuning {
constexpr int kThreads = 256;
constexpr int kPackedSlots = 4;     // a lane of packed_rows: as many loads in flight
constexpr int kWarpsPerSm = 24;     // that long rows are cut for
constexpr int kMostTickets = 4096;  // of the array that clears itself
}  // namespace reduce_tuning

struct ReduceProblem {
  Dtype dtype = Dtype::f32;
  ReduceFamily family = ReduceFamily::additive;
  ReduceLayout layout;
  int sms = 132;
  Dtype acc = Dtype::f32;   // i64: elements are looked at as integers
  bool float_lanes = true;  // the family has contiguous kernels for this dtype
  bool short_rows = true;   // and packed_rows; otherwise strided takes short rows
  int state_bytes = 4;
  int forced_chunks = 0;  // chunks a block, 0: as many as fit
};

struct ReducePlan {
  ReduceAlgo algo = ReduceAlgo::none;
  int64_t grid = 0;
  int threads = 0;
  int vector = 4;      // elements of the input in 16 bytes
  int64_t chunks = 1;  // of a row
  int64_t parts = 1;   // partial results of a row
  int lanes = 0;       // packed_rows: lanes a row
  int per = 1;         // long_rows: chunks of a row in a block, a warp each
  // strided
  int columns = 1;     // threads across columns
  int rows = 1;        // threads that share a chunk's rows
  int depth = 1;       // chunks a block
  int wide = 1;        // columns a thread
  bool loads = false;  // of all of them at once
  bool rows_inner = false;
  int64_t tiles = 1;  // of columns
  int octets = 1;     // bundles of 8 rows a thread
  int levels = 0;     // log2 of it
  int accumulators = 128;
  int offset[8] = {};  // rows of a bundle
  int stride[8] = {};  // distance of the bits of bundle and thread: levels, then rows
  int64_t tickets = 0, workspace = 0, traffic = 0;
};

// Of a partial result.
constexpr int state_bytes(ReduceFamily family, Dtype acc) {
  const int bytes = dtype_bytes(acc);
  switch (family) {
    case ReduceFamily::arg:
      return 16;
    case ReduceFamily::moments:
      return 3 * bytes;
    case ReduceFamily::logsumexp:
      return 2 * bytes;
    case ReduceFamily::stats:
      return bytes == 4 ? 48 : 64;
    default:
      return bytes;
  }
}

// Which kernels there are for elements accumulated in `acc`.
inline void set_lanes(ReduceProblem& p, Dtype acc) {
  const bool integer = acc == Dtype::i64;
  p.acc = acc;
  p.float_lanes = !integer || p.family == ReduceFamily::additive ||
                  p.family == ReduceFamily::extreme ||
                  (p.family == ReduceFamily::arg && dtype_bytes(p.dtype) >= 4);
  p.short_rows = acc == Dtype::f32;  // others are not worth kernels of their own
  p.state_bytes = state_bytes(p.family, acc);
}

constexpr int reduce_vector(Dtype t) { return 16 / dtype_bytes(t); }

// Columns that a thread of the strided kernels has: 8 bytes of a row, for what has small states.
constexpr int strided_columns(ReduceFamily family, Dtype dtype, Dtype acc) {
  const bool small = family == ReduceFamily::additive || family == ReduceFamily::extreme;
  if (acc == Dtype::i64) return 2;
  if (acc == Dtype::f64) return 1;
  if (dtype_bytes(dtype) == 2) return small ? 4 : 2;
  return family == ReduceFamily::stats ? 1 : 2;
}

// Which rows a thread of the strided kernels adds, in what order: see docs/reduce.md. Bits of the
// number of an accumulator, in the order in which the tree combines them: halving within the
// vector, then halving of slots. Those of which no row has a bit are left out.
inline void plan_tree(ReducePlan& plan, int64_t n) {
  const int v = plan.vector;
  int distance[16], count = 0;
  const int64_t span = std::min<int64_t>(std::bit_ceil<uint64_t>(std::max<int64_t>(n, 1)), kChunk);
  for (int d = v / 2; d >= 1; d /= 2)
    if (d < span) distance[count++] = d;
  for (int d = kSlots / 2; d >= 1; d /= 2)
    if (d * v < span) distance[count++] = d * v;
  plan.accumulators = kSlots * v;
  for (int e = 0; e < 8; ++e) {
    plan.offset[e] = 0;
    for (int b = 0; b < 3; ++b)
      if (e >> (2 - b) & 1) plan.offset[e] += b < count ? distance[b] : kChunk;
  }
  const int bits = std::max(count - 3, 0), bundles = 1 << bits;
  const bool deep = n > plan.accumulators;
  const int share = deep ? 2 : 4;
  plan.rows = bundles <= share ? 1 : std::min(8, bundles / share);
  plan.octets = bundles / plan.rows;
  plan.levels = std::countr_zero(static_cast<unsigned>(plan.octets));
  for (int b = 0; b < bits; ++b) plan.stride[b] = distance[3 + b];
}

inline ReducePlan plan_strided(const ReduceProblem& p, ReducePlan plan) {
  const ReduceLayout& l = p.layout;
  plan.algo = ReduceAlgo::strided;
  if (p.acc == Dtype::i64) plan.vector = 4;  // their sums are the same in any order
  plan_tree(plan, l.n);
  plan.wide = strided_columns(p.family, p.dtype, p.acc);
  plan.parts = plan.chunks;
  plan.loads = l.kept_dims > 0 && l.kept_step[0] == 1 && l.kept_size[0] % plan.wide == 0;
  for (int i = 1; i < l.kept_dims; ++i) plan.loads &= l.kept_step[i] % plan.wide == 0;
  for (int i = 0; i < l.reduced_dims; ++i) plan.loads &= l.reduced_step[i] % plan.wide == 0;
  const int64_t threads = std::max<int64_t>((l.columns + plan.wide - 1) / plan.wide, 1);
  const int room = reduce_tuning::kThreads / plan.rows;
  plan.columns = static_cast<int>(
      std::min<int64_t>(std::bit_ceil<uint64_t>(threads), plan.parts > 1 ? 32 : room));
  plan.rows_inner = l.kept_dims > 0 && l.reduced_dims > 0 && l.reduced_step[0] < l.kept_step[0];
  if (plan.rows_inner) plan.columns = std::min(plan.columns, std::max(room / 4, 1));
  plan.depth =
      static_cast<int>(std::min<int64_t>(std::bit_ceil<uint64_t>(plan.parts), room / plan.columns));
  if (p.forced_chunks > 0) plan.depth = std::min(plan.depth, p.forced_chunks);
  // Few blocks: rather more of them than chunks side by side.
  while (plan.depth > 1 && plan.columns * plan.rows * plan.depth > 64 &&
         (threads + plan.columns - 1) / plan.columns *
                 ((plan.parts + plan.depth - 1) / plan.depth) <
             2 * p.sms)
    plan.depth /= 2;
  plan.tiles = (threads + plan.columns - 1) / plan.columns;
  plan.grid = plan.tiles * ((plan.parts + plan.depth - 1) / plan.depth);
  plan.threads = std::max(plan.columns * plan.rows * plan.depth, 32);
  if (plan.parts > 1) {
    plan.threads = reduce_tuning::kThreads;  // for the finish
    plan.tickets = plan.tiles;
    plan.workspace = l.columns * plan.parts * p.state_bytes;
  }
  return plan;
}

inline ReducePlan plan_long(const ReduceProblem& p, ReducePlan plan) {
  const int64_t columns = p.layout.columns;
  plan.algo = ReduceAlgo::long_rows;
  plan.threads = reduce_tuning::kThreads;
  if (plan.chunks <= kGroup) {
    plan.per = static_cast<int>(std::bit_ceil<uint64_t>(plan.chunks));
  } else {
    plan.per = kGroup;
  }
  // Few chunks are spread over all multiprocessors, since one alone reads no faster for more warps.
  const int64_t warps = columns * plan.chunks;
  while (plan.per > 1 && warps < int64_t{plan.per} * p.sms * 2) plan.per /= 2;
  if (p.forced_chunks > 0) plan.per = std::min(kGroup, p.forced_chunks);
  plan.parts = (plan.chunks + plan.per - 1) / plan.per;
  if (plan.parts > 1) {
    plan.threads = plan.per * 32;
    plan.grid = columns * plan.parts;
    plan.tickets = columns;
    plan.workspace = columns * plan.parts * p.state_bytes;
  } else {
    const int64_t rows = kGroup / plan.per;
    plan.grid = (columns + rows - 1) / rows;
  }
  return plan;
}

inline ReducePlan plan_packed(const ReduceProblem& p, ReducePlan plan) {
  plan.algo = ReduceAlgo::packed_rows;
  plan.threads = reduce_tuning::kThreads;
  const int64_t slots = (p.layout.n + plan.vector - 1) / plan.vector;
  plan.lanes = static_cast<int>(std::bit_ceil<uint64_t>((slots + reduce_tuning::kPackedSlots - 1) /
                                                        reduce_tuning::kPackedSlots));
  const int64_t rows = plan.threads / plan.lanes;
  plan.grid = (p.layout.columns + rows - 1) / rows;
  return plan;
}

// Of two vectors.
inline ReducePlan plan_dot(const ReduceProblem& p) {
  ReducePlan plan;
  plan.vector = reduce_vector(p.dtype);
  plan.traffic = 2 * p.layout.n * dtype_bytes(p.dtype);
  plan.chunks = std::max<int64_t>((p.layout.n + kChunk - 1) / kChunk, 1);
  return plan_long(p, plan);
}

inline ReducePlan plan_reduce(const ReduceProblem& p) {
  const ReduceLayout& l = p.layout;
  ReducePlan plan;
  plan.vector = reduce_vector(p.dtype);
  plan.traffic = l.columns * l.n * dtype_bytes(p.dtype);
  if (l.columns == 0) return plan;  // grid 0: nothing to launch
  plan.chunks = std::max<int64_t>((l.n + kChunk - 1) / kChunk, 1);
  if (l.contiguous() && p.float_lanes) {
    if (l.n > kSlots * plan.vector) return plan_long(p, plan);
    if (p.short_rows) return plan_packed(p, plan);
  }
  return plan_strided(p, plan);
}

}  // namespace gpuprims
