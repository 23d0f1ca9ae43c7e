// Runs the reductions' kernels on the host: emulated_reduce CASES RESULTS. A case is a header of
// int64, then the bytes of a storage; the result of a case is the bytes of its outputs. Memory is
// exactly as large as it must be, so that AddressSanitizer sees what is read beside it.
#include <cstdlib>
#include <fstream>

#include "reduce/kernels.h"

using namespace gpuprims;

namespace {

struct Header {
  int64_t op, dtype, out_dtype, rank, reduced, offset, bytes, chunks, indices, other;
  double correction;
  int64_t sizes[8], strides[8];
};

using Launcher = cudaError_t(const ReduceArgs&, const ReducePlan&, cudaStream_t);

Launcher* launcher_of(ReduceFamily family) {
  constexpr Launcher* launchers[] = {launch_additive,  launch_extreme, launch_arg, launch_moments,
                                     launch_logsumexp, launch_stats,   launch_dot};
  return launchers[static_cast<int>(family)];
}

void run(const Header& h, char* storage, std::ofstream& results) {
  const bool stats = h.op == kReduceOps, dot = h.op == kReduceOps + 1;
  const ReduceOp op = stats ? ReduceOp::var : dot ? ReduceOp::sum : static_cast<ReduceOp>(h.op);
  const auto dtype = static_cast<Dtype>(h.dtype), out_dtype = static_cast<Dtype>(h.out_dtype);
  const ReduceFamily family = stats ? ReduceFamily::stats : dot ? ReduceFamily::dot : family_of(op);
  bool reduced[8];
  for (int d = 0; d < 8; ++d) reduced[d] = h.reduced >> d & 1;
  ReduceLayout layout;
  const bool in_order = is_arg(op) || (stats && h.indices);
  if (!make_layout(h.sizes, h.strides, h.rank, reduced, in_order, layout)) simt::fail("layout");
  ReduceArgs args = args_for(op, dtype, out_dtype, h.correction);
  args.indices = h.indices != 0;
  set_layout(args, family, layout);
  args.input = storage + h.offset * dtype_bytes(dtype);
  args.other = storage + h.other * dtype_bytes(dtype);
  ReduceProblem problem = problem_for(args, family, 4);
  problem.forced_chunks = static_cast<int>(h.chunks);
  if (const char* pieces = std::getenv("GPUPRIMS_REDUCE_PIECES"))
    problem.forced_pieces = std::atoi(pieces);
  const ReducePlan plan = dot ? plan_dot(problem) : plan_reduce(problem);
  fit_decode(args, plan, family);
  std::vector<unsigned char*> outs;
  std::vector<int64_t> sizes;
  for (int i = 0; i < (stats ? h.indices ? 7 : 5 : 1); ++i) {
    sizes.push_back(layout.columns * (i < 4 ? dtype_bytes(out_dtype) : 8));
    outs.push_back(static_cast<unsigned char*>(std::malloc(sizes.back())));
    std::memset(outs.back(), 0xEE, sizes.back());
    args.out[i] = outs.back();
  }
  args.partials = std::malloc(plan.workspace);
  args.tickets = static_cast<uint32_t*>(std::calloc(plan.tickets, 4));
  if (plan.grid > 0) launcher_of(family)(args, plan, nullptr);
  for (int64_t i = 0; i < plan.tickets; ++i)
    if (args.tickets[i]) simt::fail("a ticket was left");
  for (size_t i = 0; i < outs.size(); ++i) {
    results.write(reinterpret_cast<char*>(outs[i]), sizes[i]);
    std::free(outs[i]);
  }
  std::free(args.partials);
  std::free(args.tickets);
}

}  // namespace

int main(int, char** words) {
  std::ifstream cases(words[1], std::ios::binary);
  std::ofstream results(words[2], std::ios::binary);
  Header header;
  while (cases.read(reinterpret_cast<char*>(&header), sizeof header)) {
    char* const storage = static_cast<char*>(std::malloc(header.bytes));
    cases.read(storage, header.bytes);
    run(header, storage, results);
    std::free(storage);
  }
}
