// segment_reduce on the CPU: runs of segments are spread over threads by what
// they cost; a very long segment is cut in chunks that all threads share.
#include <cstring>

#include "reduce/segment_cpu_trees.h"
#include "reduce/segment_offsets.h"

namespace gpuprims {
namespace {

using namespace segmented;
using torch::headeronly::BFloat16;
using torch::headeronly::Half;

constexpr int64_t kTask = 1 << 16;       // values and results that are worth a task
constexpr int64_t kLong = 1 << 18;       // values of a segment that is worth all threads
constexpr int64_t kBlockRows = 64 * 64;  // rows of such a segment that are a task
constexpr int64_t kTileColumns = 128;    // whose accumulators stay in the cache

// work(first segment, last segment) over tasks of about equal cost.
template <class Work>
void for_segments(const SegmentOffsets& csr, int64_t features, const Work& work) {
  const auto cost = [&](int64_t s) { return csr[s] + 8 * s; };  // it rises
  const double total = static_cast<double>(cost(csr.segments));
  const auto tasks = static_cast<int64_t>(
      std::clamp(total * static_cast<double>(features) / static_cast<double>(kTask), 1.0, 4096.0));
  const auto cut = [&](int64_t task) {
    if (task == tasks) return csr.segments;
    const auto want = static_cast<int64_t>(total / static_cast<double>(tasks) * task);
    int64_t low = 0, high = csr.segments;
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      if (cost(middle) < want)
        low = middle + 1;
      else
        high = middle;
    }
    return low;
  };
  torch::stable::parallel_for(0, tasks, 1, [&](int64_t begin, int64_t end) {
    work(begin == 0 ? 0 : cut(begin), cut(end));
  });
}

struct Call {
  SegmentOffsets csr;
  const void* values;
  void* out;
  int64_t features;
  SegmentOp op;
  uint64_t empty;
};

template <class Out, class Op>
void put(const Call& call, const Op& op, int64_t at, const typename Op::State& state,
         int64_t length) {
  auto* const to = static_cast<Out*>(call.out) + at;
  if (length == 0) {
    std::memcpy(to, &call.empty, sizeof(Out));
    return;
  }
  auto x = op.result(state);
  if (call.op == SegmentOp::mean) x = x / static_cast<decltype(x)>(length);
  *to = static_cast<Out>(x);
}

template <class Op, class T>
auto chunk_state(const Op& op, const T* x, int64_t length) {
  const int many = static_cast<int>(std::min<int64_t>(length, kSegmentChunk));
  if constexpr (std::is_same_v<Op, LogSumExp<typename Op::Value>>) {
    return reduce_chunk_exp(op, x, many);
  } else {
    constexpr int kVector = std::is_integral_v<T> ? 4 : 16 / sizeof(T);
    return reduce_chunk<kVector>(op, x, many);
  }
}

template <class Out, class T, class Op>
void reduce_flat(const Call& call, const Op& op) {
  using State = typename Op::State;
  const T* const values = static_cast<const T*>(call.values);
  const SegmentOffsets& csr = call.csr;
  for_segments(csr, 1, [&](int64_t first, int64_t last) {
    std::vector<State> states;
    for (int64_t s = first; s < last; ++s) {
      const int64_t begin = csr[s], length = csr[s + 1] - begin;
      if (length >= kLong) continue;
      const int64_t chunks = segment_div_up(length, kSegmentChunk);
      if (chunks <= 1) {
        const auto state = length ? chunk_state(op, values + begin, length) : op.identity();
        put<Out>(call, op, s, state, length);
        continue;
      }
      states.resize(chunks);
      for (int64_t c = 0; c < chunks; ++c)
        states[c] = chunk_state(op, values + begin + c * kSegmentChunk, length - c * kSegmentChunk);
      put<Out>(call, op, s, combine_chunks(op, states.data(), chunks), length);
    }
  });
  if (csr.n < kLong) return;
  for (int64_t s = 0; s < csr.segments; ++s) {
    const int64_t begin = csr[s], length = csr[s + 1] - begin;
    if (length < kLong) continue;
    std::vector<State> states(segment_div_up(length, kSegmentChunk));
    const auto chunks = static_cast<int64_t>(states.size());
    torch::stable::parallel_for(0, chunks, 16, [&](int64_t from, int64_t to) {
      for (int64_t c = from; c < to; ++c)
        states[c] = chunk_state(op, values + begin + c * kSegmentChunk, length - c * kSegmentChunk);
    });
    put<Out>(call, op, s, combine_chunks(op, states.data(), chunks), length);
  }
}

template <class Out, class T, class Op>
void reduce_rows(const Call& call, const Op& op) {
  using State = typename Op::State;
  using A = typename Op::Value;
  const T* const values = static_cast<const T*>(call.values);
  const SegmentOffsets& csr = call.csr;
  const int64_t features = call.features;
  const auto lift = [&](const T& x) { return op.lift(static_cast<A>(x)); };
  const auto is_long = [&](int64_t length) {
    return length >= 2 * kBlockRows && length * features >= kLong;
  };
  for_segments(csr, features, [&](int64_t first, int64_t last) {
    for (int64_t column = 0; column < features; column += kTileColumns) {
      const int width = static_cast<int>(std::min(kTileColumns, features - column));
      RowTree<Op> tree(op, width);
      const std::vector<State> none(width, op.identity());
      for (int64_t s = first; s < last; ++s) {
        const int64_t begin = csr[s], end = csr[s + 1];
        if (is_long(end - begin)) continue;
        for (int64_t row = begin; row < end; ++row)
          tree.add(0, values + row * features + column, lift);
        const State* const states = begin < end ? tree.finish() : none.data();
        for (int c = 0; c < width; ++c)
          put<Out>(call, op, s * features + column + c, states[c], end - begin);
      }
    }
  });
  if (csr.n < 2 * kBlockRows) return;
  for (int64_t s = 0; s < csr.segments; ++s) {
    const int64_t begin = csr[s], length = csr[s + 1] - begin;
    if (!is_long(length)) continue;
    const int64_t blocks = segment_div_up(length, kBlockRows);
    const int64_t tiles = segment_div_up(features, kTileColumns);
    std::vector<State> partial(blocks * features);
    const auto tile_of = [&](int64_t tile) {
      const int64_t column = tile * kTileColumns;
      return std::pair(column, static_cast<int>(std::min(kTileColumns, features - column)));
    };
    torch::stable::parallel_for(0, blocks * tiles, 1, [&](int64_t from, int64_t to) {
      for (int64_t task = from; task < to; ++task) {
        const auto [column, width] = tile_of(task % tiles);
        const int64_t block = task / tiles, first = begin + block * kBlockRows;
        const int64_t last = std::min(first + kBlockRows, begin + length);
        RowTree<Op> tree(op, width);
        for (int64_t row = first; row < last; ++row)
          tree.add(0, values + row * features + column, lift);
        std::copy_n(tree.finish(), width, partial.data() + block * features + column);
      }
    });
    torch::stable::parallel_for(0, tiles, 1, [&](int64_t from, int64_t to) {
      for (int64_t tile = from; tile < to; ++tile) {
        const auto [column, width] = tile_of(tile);
        RowTree<Op> tree(op, width);
        for (int64_t block = 0; block < blocks; ++block)
          tree.add(0, partial.data() + block * features + column,
                   [](const State& state) { return state; });
        const State* const states = tree.finish();
        for (int c = 0; c < width; ++c)
          put<Out>(call, op, s * features + column + c, states[c], length);
      }
    });
  }
}

template <class Out, class T, class Op>
void run(const Call& call, Op op, Dtype dtype) {
  if constexpr (requires { op.turn; }) {
    op.turn.negate = call.op == SegmentOp::min;
    op.turn.unsigned_order = dtype == Dtype::u64 && Op::kTurned;
  }
  if (call.features == 1)
    reduce_flat<Out, T>(call, op);
  else
    reduce_rows<Out, T>(call, op);
}

template <class T>
void run_op(const Call& call, Dtype dtype) {
  constexpr bool kFloat = !std::is_integral_v<T>;
  using A = std::conditional_t<!kFloat, int64_t,
                               std::conditional_t<std::is_same_v<T, double>, double, float>>;
  using Total = std::conditional_t<kFloat, T, int64_t>;  // of sums and products
  switch (call.op) {
    case SegmentOp::sum:
    case SegmentOp::mean:
      return run<Total, T>(call, FixedOp<A, SegmentOp::sum>{}, dtype);
    case SegmentOp::prod:
      return run<Total, T>(call, FixedOp<A, SegmentOp::prod>{}, dtype);
    case SegmentOp::logsumexp:
      if constexpr (kFloat) run<T, T>(call, LogSumExp<A>{}, dtype);
      return;
    default:
      return run<T, T>(call, FixedOp<A, SegmentOp::max>{}, dtype);
  }
}

void run_dtype(const Call& call, Dtype dtype) {
  switch (dtype) {
    case Dtype::f32:
      return run_op<float>(call, dtype);
    case Dtype::f64:
      return run_op<double>(call, dtype);
    case Dtype::f16:
      return run_op<Half>(call, dtype);
    case Dtype::bf16:
      return run_op<BFloat16>(call, dtype);
    case Dtype::i8:
      return run_op<int8_t>(call, dtype);
    case Dtype::i16:
      return run_op<int16_t>(call, dtype);
    case Dtype::i32:
      return run_op<int32_t>(call, dtype);
    case Dtype::u16:
      return run_op<uint16_t>(call, dtype);
    case Dtype::u32:
      return run_op<uint32_t>(call, dtype);
    case Dtype::u64:
    case Dtype::i64:
      return run_op<int64_t>(call, dtype);
    default:
      return run_op<uint8_t>(call, dtype);
  }
}

Tensor segment_reduce_cpu(const Tensor& values_in, const Tensor& indptr_in, int64_t code,
                          int64_t promises) {
  constexpr auto kOp = "segment_reduce";
  check_segment_reduce(values_in, indptr_in, code);
  const Tensor values = dense_values(values_in), indptr = dense_values(indptr_in);
  const auto op = static_cast<SegmentOp>(code);
  const Dtype dtype = dtype_of(kOp, values.scalar_type()), result = segment_result(dtype, op);
  const int64_t segments = indptr.size(0) - 1;
  Tensor out = segment_output(kOp, values, segment_result_type(values.scalar_type(), op), segments);
  const Call call{
      {indptr.const_data_ptr(), indptr.scalar_type() == ScalarType::Long, segments, values.size(0)},
      values.const_data_ptr(),
      out.mutable_data_ptr(),
      values.dim() == 1 ? 1 : values.size(1),
      op,
      segment_empty_bits(op, result)};
  const bool good = good_offsets(kOp, call.csr, promises);
  if (out.numel() == 0) return out;
  if (good)
    run_dtype(call, dtype);
  else
    fill_segments(call.out, dtype_bytes(result), out.numel(), segment_bad_bits(result));
  return out;
}

}  // namespace
}  // namespace gpuprims

STABLE_TORCH_LIBRARY_IMPL(gpuprims, CPU, m) {
  m.impl("segment_reduce", TORCH_BOX(&gpuprims::segment_reduce_cpu));
}
