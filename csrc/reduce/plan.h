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
constexpr int kPackedSlots = 4;            // a lane of packed_rows: as many loads in flight
constexpr int kWarpsPerSm = 24;            // that long rows are cut for
constexpr int kMostTickets = 4096;         // of the array that clears itself
constexpr int kStridedThreads = 768;       // at a time on a multiprocessor
constexpr int64_t kStagedRow = 128 << 10;  // bytes of a row that a block brings to shared memory
constexpr int64_t kStagedSm = 192 << 10;   // and of all blocks of a multiprocessor
}  // namespace reduce_tuning

struct ReduceProblem {
  Dtype dtype = Dtype::f32;
  ReduceFamily family = ReduceFamily::additive;
  ReduceLayout layout;
  int sms = 132;
  Dtype acc = Dtype::f32;  // i64: elements are looked at as integers
  bool aligned = true;     // the input's address, to 16 bytes
  bool short_rows = true;  // there is packed_rows for them; otherwise long_rows takes them
  int state_bytes = 4;
  int forced_chunks = 0;  // chunks (strided: pieces) a block, 0: as many as fit
  int forced_pieces = 0;  // most pieces of a thread of columns, 0: as planned
};

struct ReducePlan {
  ReduceAlgo algo = ReduceAlgo::none;
  int64_t grid = 0;
  int threads = 0;
  int vector = 4;       // elements of the input in 16 bytes
  int64_t chunks = 1;   // of a row
  int64_t parts = 1;    // partial results of a row
  int lanes = 0;        // packed_rows: lanes a row
  int per = 1;          // long_rows: chunks of a row in a block, a warp each
  bool staged = false;  // whole chunks are asked for at once
  // strided
  int columns = 1;         // threads across columns
  int rows = 1;            // threads, or eights of them, that have a piece each at a time
  int pieces = 1;          // of a thread, one after another
  int wide = 1;            // columns a thread
  bool shared = false;     // kRowLanes threads have a piece, an accumulator each
  bool loads = false;      // of all columns of a thread at once
  bool row_loads = false;  // of 8 rows at once
  bool rows_inner = false;
  int64_t tiles = 1;  // of columns
  int64_t tickets = 0, workspace = 0, traffic = 0;
};

// Of a partial result.
constexpr int state_bytes(ReduceFamily family, Dtype acc, bool indices) {
  const int bytes = dtype_bytes(acc);
  switch (family) {
    case ReduceFamily::arg:
      return 16;
    case ReduceFamily::moments:
      return 4 * bytes;
    case ReduceFamily::logsumexp:
      return 2 * bytes;
    case ReduceFamily::stats:
      return 6 * bytes + 8 + (indices ? 16 : 0);
    default:
      return bytes;
  }
}

// Which kernels there are for elements accumulated in `acc`.
inline void set_lanes(ReduceProblem& p, Dtype acc, bool indices) {
  p.acc = acc;
  p.short_rows = acc != Dtype::f64;  // not worth kernels of their own: a warp a row
  p.state_bytes = state_bytes(p.family, acc, indices);
}

constexpr int reduce_vector(Dtype t) { return 16 / dtype_bytes(t); }

// Columns that a thread of the strided kernels has: 16 bytes of a row where its states fit.
constexpr int strided_columns(ReduceFamily family, Dtype dtype, Dtype acc) {
  const int bytes = dtype_bytes(dtype);
  if (acc == Dtype::i64) return bytes == 8 ? 2 : 4;
  if (acc == Dtype::f64) return family == ReduceFamily::stats ? 1 : 2;
  if (bytes == 2) return family == ReduceFamily::extreme ? 8 : 4;
  return 4;
}

// Which of the two trees of docs/reduce.md a sum has.
inline bool has_strided_tree(const ReduceLayout& l) { return !l.contiguous(); }

inline int floor_power(int64_t x, int64_t most) {
  return static_cast<int>(std::bit_floor<uint64_t>(std::max<int64_t>(std::min(x, most), 1)));
}
inline int ceil_power(int64_t x, int64_t most) {
  return static_cast<int>(
      std::min<int64_t>(std::bit_ceil<uint64_t>(std::max<int64_t>(x, 1)), most));
}

inline ReducePlan plan_strided(const ReduceProblem& p, ReducePlan plan) {
  const ReduceLayout& l = p.layout;
  plan.algo = ReduceAlgo::strided;
  plan.wide = strided_columns(p.family, p.dtype, p.acc);
  plan.loads = p.aligned && l.reduced_dims <= 1 && l.kept_dims > 0 && l.kept_step[0] == 1 &&
               l.kept_size[0] % plan.wide == 0;
  for (int i = 1; i < l.kept_dims; ++i) plan.loads &= l.kept_step[i] % plan.wide == 0;
  for (int i = 0; i < l.reduced_dims; ++i) plan.loads &= l.reduced_step[i] % plan.wide == 0;
  if (!plan.loads) plan.wide = 1;
  plan.rows_inner = l.kept_dims > 0 && l.reduced_dims > 0 && l.reduced_step[0] < l.kept_step[0];
  const int bytes = dtype_bytes(p.dtype), even = std::min(8, 16 / bytes);
  plan.row_loads = p.aligned && !plan.loads && plan.rows_inner && l.reduced_step[0] == 1 &&
                   (l.reduced_dims == 1 || l.reduced_size[0] % 8 == 0);
  for (int i = 0; i < l.kept_dims; ++i) plan.row_loads &= l.kept_step[i] % even == 0;
  for (int i = 1; i < l.reduced_dims; ++i) plan.row_loads &= l.reduced_step[i] % even == 0;
  const int64_t pieces = std::max<int64_t>((l.n + kPiece - 1) / kPiece, 1);
  const int64_t threads = (l.columns + plan.wide - 1) / plan.wide;
  const int64_t busy = int64_t{p.sms} * reduce_tuning::kStridedThreads;
  const bool may_share = p.family == ReduceFamily::additive || p.family == ReduceFamily::extreme ||
                         p.family == ReduceFamily::arg;
  // Measured on an H200, as what follows. Short rows of integers are a thread each.
  plan.shared =
      may_share && (threads * pieces < busy || (plan.rows_inner && !plan.row_loads && l.n >= 16));
  // Pieces one after another, while there are threads for most places; a block takes up to 8. For
  // positions in columns of float32 2.5 threads a place must be left.
  const bool many = plan.loads && p.family == ReduceFamily::arg && p.dtype == Dtype::f32;
  const int64_t needed = many ? busy / 2 * 5 : busy / 8 * 5;
  while (!plan.shared && plan.pieces < 8 && pieces > 8 &&
         (p.forced_pieces > 0 ? plan.pieces < p.forced_pieces
                              : threads * pieces / (2 * plan.pieces) >= needed))
    plan.pieces *= 2;
  const int room = reduce_tuning::kThreads / (plan.shared ? kRowLanes : 1);
  const int runs = ceil_power((pieces + plan.pieces - 1) / plan.pieces, room);
  if (plan.rows_inner) {  // neighbours in memory go to neighbouring threads
    plan.rows = std::min({runs, plan.shared ? room : 16, kGroupPieces / plan.pieces});
    plan.columns = ceil_power(threads, room / plan.rows);
  } else if (plan.shared && pieces <= room && threads <= 160) {  // one block a column or few
    plan.rows = runs;
    plan.columns = ceil_power(threads, room / plan.rows);
  } else {
    plan.columns = ceil_power(threads, std::min(room / std::min(runs, 8), 128));
    // A last tile that is mostly empty costs more than narrower ones.
    while (plan.columns > 8 && threads % plan.columns != 0 &&
           (plan.columns - threads % plan.columns) * 8 > threads)
      plan.columns /= 2;
    plan.rows = std::min({runs, room / plan.columns, kGroupPieces / plan.pieces});
  }
  // Few blocks: rather more of them.
  const auto blocks = [&] {
    const int64_t rows = plan.rows * plan.pieces;
    return (threads + plan.columns - 1) / plan.columns * ((pieces + rows - 1) / rows);
  };
  const int least = 64 / (plan.shared ? kRowLanes : 1);
  while (plan.columns * plan.rows > least && 2 * blocks() < 3 * p.sms) {
    if (plan.columns > plan.rows && plan.columns > 8)
      plan.columns /= 2;
    else if (plan.rows > 4 && !plan.shared)
      plan.rows /= 2;
    else
      break;
  }
  if (p.forced_chunks > 0) plan.rows = std::min(plan.rows, p.forced_chunks), plan.pieces = 1;
  plan.parts = (pieces + plan.rows * plan.pieces - 1) / (plan.rows * plan.pieces);
  plan.tiles = std::max<int64_t>((threads + plan.columns - 1) / plan.columns, 1);
  plan.grid = plan.tiles * plan.parts;
  plan.threads = std::max(plan.columns * plan.rows * (plan.shared ? kRowLanes : 1), 32);
  if (plan.parts > 1) {
    plan.threads = reduce_tuning::kThreads;  // for the finish
    plan.tickets = plan.tiles;
    plan.workspace = l.columns * plan.parts * p.state_bytes;
  }
  return plan;
}

inline ReducePlan plan_long(const ReduceProblem& p, ReducePlan plan) {
  using reduce_tuning::kStagedRow, reduce_tuning::kStagedSm;
  const int64_t columns = p.layout.columns;
  plan.algo = ReduceAlgo::long_rows;
  plan.threads = reduce_tuning::kThreads;
  if (plan.chunks <= kGroup) {
    plan.per = static_cast<int>(std::bit_ceil<uint64_t>(plan.chunks));
  } else {
    plan.per = kGroup;
  }
  const int64_t warps = columns * plan.chunks, bytes = int64_t{kChunk} * dtype_bytes(p.dtype);
  // Few chunks are spread over all multiprocessors, since one alone reads no faster for more warps;
  // but a row that one block brings in at once needs no other block to come to an end.
  const bool few = warps < int64_t{p.sms} * 2 * kGroup;
  // Not sums, whose loop would spill, and not float64 statistics, whose states take the room.
  const bool may_stage =
      p.family != ReduceFamily::dot && p.family != ReduceFamily::additive && p.state_bytes <= 48;
  const bool alone = may_stage && few && plan.chunks <= kGroup && plan.chunks * bytes <= kStagedRow;
  while (!alone && plan.per > 1 && warps < int64_t{plan.per} * p.sms * 2) plan.per /= 2;
  if (p.forced_chunks > 0) plan.per = std::min(kGroup, p.forced_chunks);
  plan.parts = (plan.chunks + plan.per - 1) / plan.per;
  if (plan.parts > 1) {
    plan.threads = plan.per * 32;
    plan.grid = columns * plan.parts;
    plan.tickets = columns;
    plan.workspace = columns * plan.parts * p.state_bytes;
  } else {
    if (few) plan.threads = plan.per * 32;  // a block a row
    const int64_t rows = plan.threads / 32 / plan.per;
    plan.grid = (columns + rows - 1) / rows;
  }
  const int64_t resident = (plan.grid + p.sms - 1) / p.sms * (plan.threads / 32) * bytes;
  plan.staged = may_stage && resident <= kStagedSm;
  return plan;
}

inline ReducePlan plan_packed(const ReduceProblem& p, ReducePlan plan) {
  plan.algo = ReduceAlgo::packed_rows;
  plan.threads = reduce_tuning::kThreads;
  const int64_t slots = (p.layout.n + plan.vector - 1) / plan.vector;
  constexpr int64_t kEach = reduce_tuning::kPackedSlots;
  // Where there is a tree, lanes take turns in it beyond its slots.
  const bool tree = p.family == ReduceFamily::additive && p.acc != Dtype::i64;
  plan.lanes = tree && slots > kSlots ? 32 : ceil_power((slots + kEach - 1) / kEach, 32);
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
  if (l.contiguous()) {
    const int64_t most = kSlots * plan.vector;
    const bool tiny = p.acc == Dtype::i64 && l.n < plan.vector && l.n > 1;  // of no whole vector
    if (p.short_rows && !tiny && l.n <= reduce_tuning::kPackedSlots * most)
      return plan_packed(p, plan);
    if (l.n > most || (!p.short_rows && l.n > 0)) return plan_long(p, plan);
  }
  return plan_strided(p, plan);
}

}  // namespace gpuprims
