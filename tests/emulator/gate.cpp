// Runs topk_gate's kernels on the host: problems on standard input, results on standard output
// (tests/test_topk_gate_emulated.py packs and compares them).
#include "topk/gate.cu"

using namespace gpuprims;

namespace {

struct Problem {
  int64_t dtype, bias_dtype, rows, n, k, num_groups, topk_groups, sigmoid, renormalize, biased,
      wide_index, offset, seed;
  double scale;
};

std::vector<unsigned char> read(size_t bytes) {
  std::vector<unsigned char> data(bytes);
  if (bytes && std::fread(data.data(), bytes, 1, stdin) != 1) simt::fail("short input");
  return data;
}

// `offset` bytes behind a 16-byte boundary; allocated to the byte, so that a step outside is seen.
struct Memory {
  explicit Memory(size_t bytes, size_t offset = 0)
      : block(static_cast<unsigned char*>(std::malloc(bytes + offset))), at(block + offset) {
    std::memset(block, 0xCD, bytes + offset);
  }
  ~Memory() { std::free(block); }
  unsigned char* block;
  unsigned char* at;
};

}  // namespace

int main() {
  Problem p;
  while (std::fread(&p, sizeof p, 1, stdin) == 1) {
    simt::random.seed(static_cast<unsigned>(p.seed));
    GateArgs args;
    args.dtype = static_cast<Dtype>(p.dtype);
    args.bias_dtype = static_cast<Dtype>(p.bias_dtype);
    const size_t real = args.dtype == Dtype::f64 ? 8 : 4;
    const auto logits = read(p.rows * p.n * dtype_bytes(args.dtype));
    const auto bias = read(p.biased ? p.n * dtype_bytes(args.bias_dtype) : 0);
    const Memory source(logits.size(), p.offset * dtype_bytes(args.dtype));
    std::memcpy(source.at, logits.data(), logits.size());
    const size_t slots = p.rows * p.k;
    const Memory weights(slots * real), indices(slots * (p.wide_index ? 8 : 4));
    args.logits = source.at;
    args.bias = p.biased ? bias.data() : nullptr;
    args.weights = weights.at;
    args.indices = indices.at;
    args.rows = p.rows;
    args.stride = args.n = static_cast<int>(p.n);
    args.k = static_cast<int>(p.k);
    args.num_groups = static_cast<int>(p.num_groups);
    args.topk_groups = static_cast<int>(p.topk_groups);
    args.sigmoid = p.sigmoid;
    args.renormalize = p.renormalize;
    args.wide_index = p.wide_index;
    args.scale = p.scale;
    const GatePlan plan =
        plan_gate({args.dtype, p.rows, p.n, p.k, p.num_groups, p.topk_groups, p.biased != 0});
    launch_gate(args, plan, nullptr);
    std::fwrite(weights.at, slots * real, 1, stdout);
    std::fwrite(indices.at, slots * (p.wide_index ? 8 : 4), 1, stdout);
  }
}
