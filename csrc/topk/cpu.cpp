// topk on the CPU: rows are spread over threads, and a row is cut into chunks where there are few
// rows.
#include <array>
#include <memory>
#include <new>

#include "topk/approx.h"
#include "topk/cpu_select.h"

namespace gpuprims {
namespace {

constexpr int64_t kGrain = 1 << 18;      // elements of a long row that are worth a thread: 40 us
constexpr int64_t kSlotCost = 64;        // what a selected element costs, in elements read
constexpr int64_t kBandBytes = 1 << 20;  // buffers of the rows that advance together stay in L2
constexpr int64_t kBandBlock = 64;       // and the cache lines that they share in L1

struct Problem {
  TopkShape shape;
  int64_t k = 0;
  bool largest = true;
  const void* input = nullptr;
  const uint8_t* mask = nullptr;
  int64_t step = 1, mask_step = 0;  // along the selected dimension
  int dims = 0;                     // the others, outermost first
  std::array<int64_t, kMaxDims> sizes, steps, mask_steps;
  void* values = nullptr;
  void* indices = nullptr;
  bool wide_indices = true;  // int64, else int32
};

template <class Key>
RowView<Key> row_view(const Problem& p, int64_t row) {
  int64_t offset = 0, mask_offset = 0;
  if (p.dims == 1 && !p.mask)  // no loop, no divisions
    return {static_cast<const Key*>(p.input) + row * p.steps[0], p.step, nullptr, 0};
  for (int d = p.dims - 1; d >= 0; --d) {
    const int64_t at = d > 0 ? row % p.sizes[d] : row;
    if (d > 0) row /= p.sizes[d];
    offset += at * p.steps[d];
    mask_offset += at * p.mask_steps[d];
  }
  return {static_cast<const Key*>(p.input) + offset, p.step,
          p.mask ? p.mask + mask_offset : nullptr, p.mask_step};
}

// Bits of a slot for which the mask left no element: the worst value of the dtype.
template <class Key>
Key fill_bits(const Problem& p) {
  const Dtype dtype = p.shape.dtype;
  const KeyCodec<Key> codec = make_codec<Key>(dtype, true);
  if (is_floating(dtype)) return p.largest ? codec.infinity | codec.sign : codec.infinity;
  const Key greatest = dtype == Dtype::boolean ? Key(1) : static_cast<Key>(~codec.sign);
  return p.largest ? codec.sign : greatest;
}

// Writes one row of the output slot by slot.
template <class Key>
class RowWriter {
 public:
  RowWriter(const Problem& p, const RowView<Key>& view, int64_t row)
      : p_(p), view_(view), inner_(p.shape.inner), left_(p.k) {
    at_ = inner_ == 1 ? row * p.k : row / inner_ * p.k * inner_ + row % inner_;
  }

  void put(int64_t index) { store(view_.bits[index * view_.step], index); }
  void fill() {
    while (left_ > 0) store(fill_bits<Key>(p_), -1);
  }

 private:
  void store(Key bits, int64_t index) {
    static_cast<Key*>(p_.values)[at_] = bits;
    if (p_.wide_indices)
      static_cast<int64_t*>(p_.indices)[at_] = index;
    else
      static_cast<int32_t*>(p_.indices)[at_] = static_cast<int32_t>(index);
    at_ += inner_;
    --left_;
  }

  const Problem& p_;
  const RowView<Key> view_;
  const int64_t inner_;
  int64_t left_;
  int64_t at_;
};

// The k best of several sorted lists, by a heap of their heads.
template <class Key, class Word>
void merge(const Selector<Key, Word>* parts, int64_t count, int64_t k, RowWriter<Key>& writer) {
  using Head = std::pair<const Word*, const Word*>;
  std::vector<Head> heads;
  for (int64_t i = 0; i < count; ++i)
    if (parts[i].begin() != parts[i].end()) heads.emplace_back(parts[i].begin(), parts[i].end());
  const auto worse = [](const Head& a, const Head& b) { return *a.first < *b.first; };
  std::make_heap(heads.begin(), heads.end(), worse);
  for (; k > 0 && !heads.empty(); --k) {
    std::pop_heap(heads.begin(), heads.end(), worse);
    Head& head = heads.back();
    writer.put(Words<Key, Word>::index(*head.first));
    if (++head.first == head.second)
      heads.pop_back();
    else
      std::push_heap(heads.begin(), heads.end(), worse);
  }
}

template <class Body>
void parallel(int64_t slots, const Body& body) {
  if (slots == 1) return body(0);
  torch::stable::parallel_for(0, slots, 1, [&](int64_t begin, int64_t end) {
    for (int64_t slot = begin; slot < end; ++slot) body(slot);
  });
}

// Rows of at most kTinyRow elements, without a mask: in registers and L1, where the Selector's own
// bookkeeping would cost four times as much as the row.
template <class Key>
void select_tiny_rows(const Problem& p) {
  const int64_t n = p.shape.n, k = p.k;
  const KeyCodec<Key> codec = make_codec<Key>(p.shape.dtype, p.largest);
  const int64_t work = p.shape.rows * n * (2 + std::min<int64_t>(k, 8));
  const int64_t slots =
      work < 2 * kGrain ? 1 : std::min<int64_t>(work / kGrain, torch::stable::get_num_threads());
  parallel(slots, [&](int64_t slot) {
    Key keys[kTinyRow];
    int32_t order[kTinyRow];
    for (int64_t row = p.shape.rows * slot / slots; row < p.shape.rows * (slot + 1) / slots;
         ++row) {
      const RowView<Key> view = row_view<Key>(p, row);
      if (k == 1) {
        int64_t at = 0;
        Key best = codec.encode(view.bits[0]);
        for (int64_t i = 1; i < n; ++i) {
          const Key key = codec.encode(view.bits[i * view.step]);
          if (key > best) best = key, at = i;
        }
        static_cast<Key*>(p.values)[row] = view.bits[at * view.step];  // [outer, 1, inner]
        if (p.wide_indices)
          static_cast<int64_t*>(p.indices)[row] = at;
        else
          static_cast<int32_t*>(p.indices)[row] = static_cast<int32_t>(at);
        continue;
      }
      if (sizeof(Key) <= 4 && k > 3 && n > 8) {
        for (int64_t i = 0; i < n; ++i) keys[i] = codec.encode(view.bits[i * view.step]);
        rank_best(keys, static_cast<int>(n), order);
      } else {
        for (int64_t i = 0; i < n; ++i) {  // insertion; an equal key stays behind
          const Key key = codec.encode(view.bits[i * view.step]);
          int64_t at = std::min(i, k - 1);
          if (i >= k && key <= keys[at]) continue;
          for (; at > 0 && keys[at - 1] < key; --at) {
            keys[at] = keys[at - 1];
            order[at] = order[at - 1];
          }
          keys[at] = key;
          order[at] = static_cast<int32_t>(i);
        }
      }
      RowWriter<Key> writer(p, view, row);
      for (int64_t i = 0; i < k; ++i) writer.put(order[i]);
    }
  });
}

template <class Key, class Word>
void select_rows(const Problem& p) {
  if (p.shape.n <= kTinyRow && !p.mask) return select_tiny_rows<Key>(p);
  using Select = Selector<Key, Word>;
  const int64_t rows = p.shape.rows, n = p.shape.n, k = p.k;
  // Rows that share cache lines advance together, so that a line is fetched once.
  constexpr int64_t kLine = 64 / sizeof(Key);
  const int64_t line_bytes = kLine * sizeof(Word) * Select::buffer_words(k, n, kBandBlock);
  const int64_t band = p.step != 1 && line_bytes <= kBandBytes ? std::min(kLine, rows) : 1;
  const int64_t block = band > 1 ? kBandBlock : kBlock;
  const int64_t groups = (rows + band - 1) / band;
  const int64_t work = rows * (n + kSlotCost * k);
  const int64_t slots =
      work < 2 * kGrain ? 1 : std::min<int64_t>(work / kGrain, torch::stable::get_num_threads());
  const int64_t chunks = groups % slots == 0 || groups >= 4 * slots ? 1 : std::min(slots, n);
  const int64_t length = (n + chunks - 1) / chunks;
  const int64_t tasks = groups * chunks;
  // A chunk keeps its list until the merge; a whole row is written at once and its buffer used
  // again.
  const int64_t selectors = (chunks > 1 ? tasks : std::min(slots, tasks)) * band;
  const int64_t words = Select::buffer_words(k, length, block);
  const std::unique_ptr<Word[]> buffer(new (std::nothrow) Word[selectors * words]);
  const std::unique_ptr<Select[]> select(new (std::nothrow) Select[selectors]);
  check(buffer && select, "topk: out of memory allocating ",
        selectors * words * int64_t(sizeof(Word)), " bytes");
  const KeyCodec<Key> codec = make_codec<Key>(p.shape.dtype, p.largest);
  for (int64_t i = 0; i < selectors; ++i)
    select[i] = Select(codec, k, length, block, buffer.get() + i * words);

  parallel(slots, [&](int64_t slot) {
    std::array<RowView<Key>, kLine> views;
    for (int64_t task = tasks * slot / slots; task < tasks * (slot + 1) / slots; ++task) {
      const int64_t chunk =
          chunks > 1 ? task % chunks : 0;  // a division costs as much as a short row
      const int64_t first = (chunks > 1 ? task / chunks : task) * band;
      const int64_t width = std::min(band, rows - first);
      const int64_t begin = std::min(n, chunk * length), end = std::min(n, begin + length);
      Select* mine = &select[(chunks > 1 ? task : slot) * band];
      for (int64_t b = 0; b < width; ++b) {
        views[b] = row_view<Key>(p, first + b);
        mine[b].start(views[b], begin, end);
      }
      for (int64_t at = begin; at < end; at += block)
        for (int64_t b = 0; b < width; ++b) mine[b].scan(views[b], at, std::min(end, at + block));
      for (int64_t b = 0; b < width; ++b) {
        mine[b].finish();
        if (chunks > 1) continue;
        RowWriter<Key> writer(p, views[b], first + b);
        for (const Word word : mine[b]) writer.put(Words<Key, Word>::index(word));
        writer.fill();
      }
    }
  });
  if (chunks == 1) return;
  parallel(slots, [&](int64_t slot) {
    std::vector<Select> parts(chunks);
    for (int64_t row = rows * slot / slots; row < rows * (slot + 1) / slots; ++row) {
      for (int64_t c = 0; c < chunks; ++c)
        parts[c] = select[(row / band * chunks + c) * band + row % band];
      const RowView<Key> view = row_view<Key>(p, row);
      RowWriter<Key> writer(p, view, row);
      merge(parts.data(), chunks, k, writer);
      writer.fill();
    }
  });
}

Problem describe(TensorRef input, const TopkShape& shape, int64_t k, bool largest,
                 const std::optional<Tensor>& mask) {
  Problem p;
  p.shape = shape;
  p.k = k;
  p.largest = largest;
  p.input = input.const_data_ptr();
  const auto sizes = input.sizes(), steps = input.strides();
  const int64_t rank = input.dim(), lead = mask ? rank - mask->dim() : 0;
  if (mask) p.mask = static_cast<const uint8_t*>(mask->data_ptr());
  for (int64_t d = 0; d < rank; ++d) {
    const bool spans =
        mask && d >= lead && mask->sizes()[d - lead] != 1;  // otherwise it broadcasts
    const int64_t mask_step = spans ? mask->strides()[d - lead] : 0;
    if (d == shape.dim) {
      p.step = steps[d];
      p.mask_step = mask_step;
      continue;
    }
    p.sizes[p.dims] = sizes[d];
    p.steps[p.dims] = steps[d];
    p.mask_steps[p.dims++] = mask_step;
  }
  return p;
}

TopkResult topk_cpu(TensorRef input, int64_t k, int64_t dim, bool largest,
                    const std::optional<Tensor>& mask, int64_t index_bits) {
  const TopkShape shape = check_topk(input, k, dim, mask, index_bits);
  TopkResult result = allocate_topk(input, shape, index_bits);
  if (shape.rank == 0) k = 1;  // as in torch.topk: there is a slot even for k = 0
  if (k == 0 || shape.rows == 0) return result;
  const int bytes = dtype_bytes(shape.dtype);
  Problem p = describe(input, shape, k, largest, mask);
  p.values = data_of(result.values);
  p.indices = data_of(result.indices);
  p.wide_indices = index_bits == 64;
  if (bytes == 1) select_rows<uint8_t, uint64_t>(p);
  if (bytes == 2) select_rows<uint16_t, uint64_t>(p);
  if (bytes == 4 && p.shape.n <= UINT32_MAX) select_rows<uint32_t, uint64_t>(p);
  if (bytes == 4 && p.shape.n > UINT32_MAX) select_rows<uint32_t, unsigned __int128>(p);
  if (bytes == 8) select_rows<uint64_t, unsigned __int128>(p);
  return result;
}

// Exact: two stages take longer here, for they compare each element with a bound of its own.
TopkResult approx_topk_cpu(const Tensor& input, int64_t k, double recall_target, bool largest) {
  check_recall(recall_target);
  return topk_cpu(input, k, -1, largest, std::nullopt, 64);
}

}  // namespace
}  // namespace gpuprims

STABLE_TORCH_LIBRARY_IMPL(gpuprims, CPU, m) {
  m.impl("topk", &gpuprims::boxed_topk<gpuprims::topk_cpu>);
  m.impl("_topk", &gpuprims::boxed_plain_topk<gpuprims::topk_cpu>);
  m.impl("approx_topk", &gpuprims::boxed_approx_topk<gpuprims::approx_topk_cpu>);
}
