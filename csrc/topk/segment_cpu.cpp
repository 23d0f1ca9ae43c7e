// segment_topk on the CPU: runs of segments are spread over threads by what they cost; a very long
// segment is a row of topk, which cuts it.
#include <array>
#include <atomic>
#include <memory>
#include <new>

#include "topk/cpu_select.h"
#include "topk/missing.h"
#include "topk/segment_checks.h"

namespace gpuprims {
namespace {

constexpr auto kOp = "segment_topk";
constexpr int64_t kTask = 1 << 16;  // elements and slots that are worth a task
constexpr int64_t kSlotCost = 4;    // of a slot, in elements read
constexpr int64_t kLong = 1 << 20;  // elements of a segment that is worth all threads
constexpr int64_t kCheckGrain = 1 << 16;

struct Problem {
  const void* values;
  const void* indptr;
  const void* counts;
  bool wide_offsets, wide_counts, wide_index;
  int64_t n, segments, k;
  Dtype dtype;
  bool largest;
  void* out_values;
  void* out_indices;

  static int64_t load(const void* p, bool wide, int64_t at) {
    return wide ? static_cast<const int64_t*>(p)[at] : static_cast<const int32_t*>(p)[at];
  }
  int64_t offset(int64_t s) const { return load(indptr, wide_offsets, s); }
  int64_t count(int64_t s) const { return counts ? load(counts, wide_counts, s) : k; }
  int64_t wanted(int64_t s) const { return std::min({k, count(s), offset(s + 1) - offset(s)}); }
};

int look(const Problem& p) {
  std::atomic<int> flag{p.offset(0) != 0 || p.offset(p.segments) != p.n ? kBadSegments : 0};
  torch::stable::parallel_for(0, p.segments, kCheckGrain, [&](int64_t begin, int64_t end) {
    int bad = 0;
    for (int64_t s = begin; s < end; ++s) {
      const int64_t from = p.offset(s), to = p.offset(s + 1);
      if (from < 0 || to < from || to > p.n) bad |= kBadSegments;
      if (p.counts && p.count(s) < 0) bad |= kBadCounts;
    }
    if (bad) flag |= bad;
  });
  return flag;
}

void put_index(const Problem& p, int64_t at, int64_t index) {
  if (p.wide_index)
    static_cast<int64_t*>(p.out_indices)[at] = index;
  else
    static_cast<int32_t*>(p.out_indices)[at] = static_cast<int32_t>(index);
}

template <class Key>
void fill(const Problem& p, int64_t begin, int64_t end, uint64_t bits) {
  for (int64_t at = begin; at < end; ++at) {
    static_cast<Key*>(p.out_values)[at] = static_cast<Key>(bits);
    put_index(p, at, -1);
  }
}

// One segment after another, with one buffer.
template <class Key, class Word>
class SegmentSelector {
  using Select = Selector<Key, Word>;

 public:
  explicit SegmentSelector(const Problem& p)
      : p_(p),
        codec_(make_codec<Key>(p.dtype, p.largest)),
        missing_(missing_bits(p.dtype, p.largest)) {}

  // Returns 0, or the bytes that there was no memory for.
  int64_t run(int64_t s) {
    const int64_t begin = p_.offset(s), length = p_.offset(s + 1) - begin, wanted = p_.wanted(s);
    const Key* const bits = static_cast<const Key*>(p_.values) + begin;
    int64_t at = s * p_.k;
    if (wanted > 0) {
      const int64_t words = Select::buffer_words(wanted, length, kBlock);
      if (words > room_) {
        buffer_.reset(new (std::nothrow) Word[words]);
        room_ = buffer_ ? words : 0;
        if (!buffer_) return words * int64_t{sizeof(Word)};
      }
      const RowView<Key> view{bits, 1, nullptr, 0};
      Select select(codec_, wanted, length, kBlock, buffer_.get());
      select.start(view, 0, length);
      for (int64_t from = 0; from < length; from += kBlock)
        select.scan(view, from, std::min(length, from + kBlock));
      select.finish();
      for (const Word word : select) {
        const int64_t index = Words<Key, Word>::index(word);
        static_cast<Key*>(p_.out_values)[at] = bits[index];
        put_index(p_, at++, begin + index);
      }
    }
    fill<Key>(p_, at, (s + 1) * p_.k, missing_);
    return 0;
  }

 private:
  const Problem& p_;
  const KeyCodec<Key> codec_;
  const uint64_t missing_;
  std::unique_ptr<Word[]> buffer_;
  int64_t room_ = 0;
};

// A long segment by the op topk.
void run_long(const Problem& p, const Tensor& values, int64_t s) {
  const int64_t begin = p.offset(s), wanted = p.wanted(s);
  if (wanted > 0) {
    Tensor row = values;
    row = torch::stable::narrow(row, 0, begin, p.offset(s + 1) - begin);
    using torch::stable::detail::from;
    std::array<StableIValue, 7> stack{from(row),        from(wanted), from(int64_t{-1}),
                                      from(p.largest),  from(true),   from(std::optional<Tensor>()),
                                      from(int64_t{64})};
    check_call(torch_call_dispatcher("gpuprims::topk", "", stack.data(), TORCH_ABI_VERSION),
               "gpuprims::topk");
    const Tensor best = torch::stable::detail::to<Tensor>(stack[0]);
    const Tensor indices = torch::stable::detail::to<Tensor>(stack[1]);
    const int bytes = dtype_bytes(p.dtype);
    std::memcpy(static_cast<char*>(p.out_values) + s * p.k * bytes, best.const_data_ptr(),
                wanted * bytes);
    const auto* const at = static_cast<const int64_t*>(indices.const_data_ptr());
    for (int64_t i = 0; i < wanted; ++i) put_index(p, s * p.k + i, begin + at[i]);
  }
}

template <class Key, class Word>
void run_all(const Problem& p, const Tensor& values) {
  // Cost of the segments before s; it rises, so that tasks are cut by search.
  const auto cost = [&](int64_t s) { return p.offset(s) + s * (1 + kSlotCost * p.k); };
  const int64_t tasks = std::clamp<int64_t>(cost(p.segments) / kTask, 1, 1 << 16);
  const auto cut = [&](int64_t task) {
    const auto want = static_cast<int64_t>(static_cast<double>(cost(p.segments)) / tasks * task);
    int64_t low = 0, high = p.segments;
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      if (cost(middle) < want)
        low = middle + 1;
      else
        high = middle;
    }
    return low;
  };
  const uint64_t missing = missing_bits(p.dtype, p.largest);
  std::atomic<int64_t> refused{0};  // bytes
  torch::stable::parallel_for(0, tasks, 1, [&](int64_t begin, int64_t end) {
    SegmentSelector<Key, Word> select(p);
    const int64_t last = end == tasks ? p.segments : cut(end);
    for (int64_t s = begin == 0 ? 0 : cut(begin); s < last; ++s) {
      if (p.offset(s + 1) - p.offset(s) >= kLong) {
        fill<Key>(p, s * p.k + p.wanted(s), (s + 1) * p.k, missing);
      } else if (const int64_t bytes = select.run(s)) {
        refused = bytes;
        return;
      }
    }
  });
  check(refused == 0, kOp, ": out of memory allocating ", refused.load(), " bytes");
  if (p.n < kLong) return;
  for (int64_t s = 0; s < p.segments; ++s)
    if (p.offset(s + 1) - p.offset(s) >= kLong) run_long(p, values, s);
}

std::tuple<Tensor, Tensor> segment_topk_cpu(const Tensor& values_in, const Tensor& indptr_in,
                                            int64_t k, const std::optional<Tensor>& counts_in,
                                            bool largest, int64_t index_bits, int64_t promises) {
  const Dtype dtype = check_segment_topk(values_in, indptr_in, k, counts_in, index_bits);
  const Tensor values = dense_1d(values_in), indptr = dense_1d(indptr_in);
  std::optional<Tensor> counts;
  if (counts_in) counts = dense_1d(*counts_in);
  const int64_t segments = indptr.size(0) - 1;
  Tensor out_values = empty(kOp, values, values.scalar_type(), {segments, k});
  Tensor out_indices =
      empty(kOp, values, index_bits == 64 ? ScalarType::Long : ScalarType::Int, {segments, k});
  const Problem p{values.const_data_ptr(),
                  indptr.const_data_ptr(),
                  counts ? counts->const_data_ptr() : nullptr,
                  indptr.scalar_type() == ScalarType::Long,
                  counts && counts->scalar_type() == ScalarType::Long,
                  index_bits == 64,
                  values.size(0),
                  segments,
                  k,
                  dtype,
                  largest,
                  out_values.mutable_data_ptr(),
                  out_indices.mutable_data_ptr()};
  const bool raise = raise_on_bad_data(), nothing = segments == 0 || k == 0;
  if (nothing && !raise) return {std::move(out_values), std::move(out_indices)};
  const int bytes = dtype_bytes(dtype);
  if (raise || counts || !(promises & kSegmentsChecked)) {
    const int flag = look(p);
    if (raise) check_segment_flag(flag, p.n);
    if (flag) {
      const uint64_t bad = bad_bits(dtype);
      if (bytes == 1) fill<uint8_t>(p, 0, segments * k, bad);
      if (bytes == 2) fill<uint16_t>(p, 0, segments * k, bad);
      if (bytes == 4) fill<uint32_t>(p, 0, segments * k, bad);
      if (bytes == 8) fill<uint64_t>(p, 0, segments * k, bad);
      return {std::move(out_values), std::move(out_indices)};
    }
  }
  if (nothing) return {std::move(out_values), std::move(out_indices)};
  if (bytes == 1) run_all<uint8_t, uint64_t>(p, values);
  if (bytes == 2) run_all<uint16_t, uint64_t>(p, values);
  if (bytes == 4) run_all<uint32_t, uint64_t>(p, values);
  if (bytes == 8) run_all<uint64_t, unsigned __int128>(p, values);
  return {std::move(out_values), std::move(out_indices)};
}

}  // namespace
}  // namespace gpuprims

STABLE_TORCH_LIBRARY_IMPL(gpuprims, CPU, m) {
  m.impl("segment_topk", TORCH_BOX(&gpuprims::segment_topk_cpu));
}
