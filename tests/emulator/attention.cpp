// Runs the attention kernels on the host: problems on standard input, results on standard output
// (tests/test_attention_emulated.py packs and compares them).
#include "common/launch.h"

// What simt.h lacks of CUDA for csrc/attention.
template <class T>
T __ldg(const T* at) {
  if (reinterpret_cast<uintptr_t>(at) % sizeof(T)) simt::fail("a load is misaligned");
  return *at;
}
template <class T>
void __stcs(T* at, T value) {
  if (reinterpret_cast<uintptr_t>(at) % sizeof(T)) simt::fail("a store is misaligned");
  *at = value;
}
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline double __fma_rn(double a, double b, double c) { return std::fma(a, b, c); }
inline double __hiloint2double(int high, int low) {
  const uint64_t bits =
      static_cast<uint64_t>(static_cast<uint32_t>(high)) << 32 | static_cast<uint32_t>(low);
  double value;
  std::memcpy(&value, &bits, 8);
  return value;
}
inline float __int_as_float(int bits) { return __uint_as_float(static_cast<unsigned>(bits)); }

#include "attention/backward.cu"
#include "attention/forward.cu"
#include "attention/gatv2.cu"
#include "attention/prepare.cu"
#include "attention/softmax.cu"
#include "attention/stats.cu"

using namespace gpuprims;
using namespace gpuprims::attention;

namespace {

struct Problem {
  int64_t dtype, rows, columns, edges, heads, channels, terms, offset, checked, seed, dropped;
  double slope, dropout;
};

// `offset` bytes behind a 16-byte boundary; allocated to the byte, so that a step outside is seen.
struct Memory {
  explicit Memory(size_t bytes, size_t offset = 0)
      : bytes(bytes),
        block(static_cast<unsigned char*>(std::malloc(bytes + offset))),
        at(block + offset) {
    std::memset(block, 0xff, bytes + offset);
  }
  Memory(const Memory&) = delete;
  Memory(Memory&& other) : bytes(other.bytes), block(other.block), at(other.at) {
    other.block = nullptr;
  }
  ~Memory() { std::free(block); }
  void read() const {
    if (bytes && std::fread(at, bytes, 1, stdin) != 1) simt::fail("short input");
  }
  void write() const { std::fwrite(at, 1, bytes, stdout); }
  size_t bytes;
  unsigned char* block;
  unsigned char* at;
};

Memory read(size_t bytes, size_t offset = 0) {
  Memory memory(bytes, offset);
  memory.read();
  return memory;
}

void check(cudaError_t code) {
  if (code != cudaSuccess) simt::fail("a launch failed");
}

struct Walk {
  Plan plan;
  Memory space;
  Hubs hubs;

  Walk(const Problem& p, const Csr& csr, bool vector, int64_t partial, bool runs = false)
      : plan(plan_rows(static_cast<Dtype>(p.dtype), vector, csr.rows, csr.edges, p.heads,
                       p.channels, partial, p.checked, false, 2, runs)),
        space(plan.space_bytes) {
    if (plan.space_bytes == 0) return;
    hubs = {reinterpret_cast<int*>(space.at),
            reinterpret_cast<unsigned long long*>(space.at + 8),
            reinterpret_cast<Chunk*>(space.at + plan.chunks_at),
            plan.capacity,
            runs ? reinterpret_cast<int64_t*>(space.at + plan.starts_at) : nullptr,
            plan.runs,
            plan.run_work,
            space.at + plan.partial_at,
            space.at + 16};
    check(launch_prepare(csr, hubs, false, nullptr));
  }
};

}  // namespace

// Under the emulator memory is set at once.
extern "C" cudaError_t cudaMemsetAsync(void* at, int value, size_t bytes, cudaStream_t) {
  std::memset(at, value, bytes);
  return cudaSuccess;
}

int main() {
  Problem p;
  while (std::fread(&p, sizeof p, 1, stdin) == 1) {
    simt::random.seed(static_cast<unsigned>(p.seed));
    const Dtype dtype = static_cast<Dtype>(p.dtype);
    const size_t size = dtype_bytes(dtype), wide = dtype == Dtype::f64 ? 8 : 4;
    const int64_t width = p.heads * p.channels;
    const size_t shift = p.offset * size;
    const Memory indptr = read((p.rows + 1) * 8), indices = read(p.edges * 4);
    const Memory ids = read(p.edges * 8), t_indptr = read((p.columns + 1) * 8);
    const Memory t_indices = read(p.edges * 4), t_ids = read(p.edges * 8);
    const Memory x = read(p.columns * width * size, shift);
    const Memory a_src = read(p.columns * p.heads * size), a_dst = read(p.rows * p.heads * size);
    const Memory a_edge = read(p.edges * p.heads * size), seed = read(8);
    const Memory grad = read(p.rows * width * size, shift),
                 grad_lse = read(p.rows * p.heads * wide);
    const Memory x_dst = read(p.rows * width * size, shift), att = read(width * size);
    const Memory edge = read(p.edges * width * size);
    const Csr csr{indptr.at, indices.at, ids.at, true, false, p.rows, p.columns, p.edges};
    const Csr transpose{t_indptr.at, t_indices.at, t_ids.at, true,
                        false,       p.columns,    p.rows,   p.edges};
    const bool vector = p.channels * size % 16 == 0 && p.offset == 0;
    Scores scores{};
    scores.a_edge = p.terms & 4 ? a_edge.at : nullptr;
    scores.seed = p.dropped ? reinterpret_cast<const int64_t*>(seed.at) : nullptr;
    scores.threshold = dropout_threshold(p.dropout);
    scores.kept_scale = 1 / (1 - p.dropout);
    scores.slope = p.slope;
    scores.by_id = scores.a_edge || scores.seed;

    const Memory out(p.rows * width * size), lse(p.rows * p.heads * wide);
    const Memory positive(p.rows * (width + p.heads) * wide);
    ForwardArgs f{};
    f.csr = csr;
    f.heads = p.heads, f.channels = p.channels;
    f.x = x.at, f.x_stride = width;
    f.a_src = p.terms & 1 ? a_src.at : nullptr, f.a_src_stride = p.heads;
    f.a_dst = p.terms & 2 ? a_dst.at : nullptr, f.a_dst_stride = p.heads;
    f.scores = scores;
    f.bias = p.terms & 8 ? att.at : nullptr;
    f.out = out.at, f.lse = lse.at;
    const Walk forward(p, csr, vector, attended_partial(p.heads, p.channels, true), true);
    f.hubs = forward.hubs;
    const Memory plain_out(p.rows * width * size), plain_lse(p.rows * p.heads * wide);
    f.out = plain_out.at, f.lse = plain_lse.at;
    check(launch_forward(dtype, forward.plan, f, nullptr));
    f.out = out.at, f.lse = lse.at, f.positive = positive.at,
    f.share = positive.at + p.rows * width * wide;
    check(launch_forward(dtype, forward.plan, f, nullptr));
    if (std::memcmp(out.at, plain_out.at, out.bytes) ||
        std::memcmp(lse.at, plain_lse.at, lse.bytes))
      simt::fail("keeping the positive part changes the result");

    const Memory stats(p.rows * p.heads * 4 * wide), kept_dst(p.rows * p.heads * size);
    check(launch_stats(
        dtype,
        {p.rows, p.heads, p.channels, grad.at, width, out.at, f.bias, lse.at, grad_lse.at, f.a_dst,
         p.heads, vector, stats.at, positive.at, kept_dst.at, p.slope},
        nullptr));
    const Memory grad_x(p.columns * width * size), grad_src(p.columns * p.heads * size);
    const Memory grad_dst(p.rows * p.heads * size), grad_edge(p.edges * p.heads * size);
    BackwardArgs b{};
    b.heads = p.heads, b.channels = p.channels;
    b.a_src = f.a_src, b.a_src_stride = p.heads;
    b.stats = stats.at;
    b.scores = scores;
    b.own_stride = b.other_stride = width;
    b.csr = transpose;
    b.by_source = true;
    b.own = x.at, b.other = grad.at;
    b.grad_other_sum = grad_x.at, b.grad_row = grad_src.at;
    const Memory grad_score(p.edges * p.heads * wide);
    b.grad_score = grad_score.at, b.grad_edge = grad_edge.at;
    b.scores.by_id = true;
    const Walk by_source(p, transpose, vector, width + p.heads, true);
    b.hubs = by_source.hubs;
    check(launch_backward(dtype, by_source.plan, b, nullptr));
    SoftmaxArgs sums{csr,     p.heads,     grad_score.at, nullptr,
                     nullptr, grad_dst.at, dtype,         forward.hubs};
    check(launch_softmax(dtype == Dtype::f64 ? dtype : Dtype::f32, forward.plan, sums, nullptr));

    // Without the transposed graph.
    const Memory direct_dst(p.rows * p.heads * size), direct_edge(p.edges * p.heads * size);
    b.csr = csr;
    b.by_source = false;
    b.own = grad.at, b.other = x.at;
    b.grad_other_sum = nullptr, b.grad_row = direct_dst.at;
    b.grad_score = nullptr, b.grad_edge = direct_edge.at;
    const Walk by_destination(p, csr, vector, width + p.heads, true);
    b.hubs = by_destination.hubs;
    check(launch_backward(dtype, by_destination.plan, b, nullptr));

    const Memory alpha(p.edges * p.heads * size), grad_alpha(p.edges * p.heads * size);
    SoftmaxArgs s{csr, p.heads, a_edge.at, nullptr, alpha.at, nullptr, dtype, forward.hubs};
    check(launch_softmax(dtype, forward.plan, s, nullptr));
    SoftmaxArgs sg{csr, p.heads, a_edge.at, alpha.at, grad_alpha.at, nullptr, dtype, forward.hubs};
    check(launch_softmax(dtype, forward.plan, sg, nullptr));

    const Memory score(p.edges * p.heads * size), v2_src(p.columns * width * size);
    const Memory v2_dst(p.rows * width * size), v2_att(p.rows * width * size);
    const Memory v2_edge(p.edges * width * size);
    Gatv2Args g{};
    g.csr = csr;
    g.heads = p.heads, g.channels = p.channels;
    g.own = x_dst.at, g.other = x.at;
    g.own_stride = g.other_stride = width;
    g.att = att.at;
    g.edge = p.terms & 4 ? edge.at : nullptr;
    g.slope = p.slope;
    g.scores = score.at;
    const Walk v2(p, csr, vector, 2 * width);
    g.hubs = v2.hubs;
    check(launch_gatv2(dtype, v2.plan, g, nullptr));
    g.grad = a_edge.at;
    g.grad_own = v2_dst.at, g.grad_att = v2_att.at, g.grad_edge = v2_edge.at;
    check(launch_gatv2(dtype, v2.plan, g, nullptr));
    const Walk v2_t(p, transpose, vector, 2 * width);
    g.csr = transpose;
    g.by_source = true;
    g.own = x.at, g.other = x_dst.at;
    g.grad_own = v2_src.at, g.grad_att = nullptr, g.grad_edge = nullptr;
    g.hubs = v2_t.hubs;
    check(launch_gatv2(dtype, v2_t.plan, g, nullptr));

    for (const Memory* m : {&out, &lse, &positive, &grad_x, &grad_src, &grad_dst, &grad_edge,
                            &direct_dst, &direct_edge, &kept_dst, &alpha, &grad_alpha, &score,
                            &v2_src, &v2_dst, &v2_att, &v2_edge})
      m->write();
  }
}
