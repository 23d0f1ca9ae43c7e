// What the host may ask of the GPU: raw pointers in, cudaError_t out; no PyTorch on either side.
#pragma once
#include <cuda_runtime_api.h>

#include "aggregate/csr.h"
#include "attention/plan.h"
#include "common/dtype.h"

namespace gpuprims::attention {

struct Chunk {
  int64_t row;
  int64_t number;  // within its row
};

// Device memory beside one call: what `prepare` found out, and the partial results of hubs.
struct Hubs {
  int* flag = nullptr;                  // kBad*; null: the offsets are known to be good
  unsigned long long* count = nullptr;  // chunks in the list
  Chunk* chunks = nullptr;              // [capacity]; the chunks of a row lie together, in order
  int64_t capacity = 0;                 // 0: no row is cut
  int64_t* starts = nullptr;            // [runs + 1] first rows of runs, or null (plan.h)
  int64_t runs = 0, run_work = 0;
  void* partial = nullptr;      // [capacity, ..] accumulators
  const void* zeros = nullptr;  // 32 bytes, for lanes that have nothing to read
};

// What turns an edge's terms into its alpha.
struct Scores {
  const void* a_edge;   // [edges, heads] by id, or null
  const int64_t* seed;  // null: no dropout
  uint64_t threshold;   // plan.h
  double kept_scale;    // 1 / (1 - dropout)
  double slope;
  bool by_id;  // something is read or written at an edge's id
};

struct ForwardArgs {
  Csr csr;
  int64_t heads, channels;
  const void* x;  // [columns, heads, channels]
  int64_t x_stride;
  const void* a_src;  // [columns, heads], or null
  int64_t a_src_stride;
  const void* a_dst;  // [rows, heads], or null
  int64_t a_dst_stride;
  Scores scores;
  const void* bias;  // [heads, channels], or null
  void* out;         // [rows, heads, channels]
  void* lse;         // [rows, heads] in the accumulator's type
  // In the accumulator's type, or null: the part of out with positive scores, and its share of the
  // softmax, [rows, heads].
  void* positive;
  void* share;
  Hubs hubs;  // partial [capacity, partial_width()]: sums, bases, denominators, positive ones

  constexpr int64_t partial_width() const {
    return attended_partial(heads, channels, positive != nullptr);
  }
};

// What a destination brings to the gradient of its edges, in the accumulator's type.
struct StatsArgs {
  int64_t rows, heads, channels;
  const void* grad;  // [rows, heads, channels]
  int64_t grad_stride;
  const void* out;       // [rows, heads, channels], dense
  const void* bias;      // [heads, channels] that out has above the sums, or null
  const void* lse;       // [rows, heads]
  const void* grad_lse;  // [rows, heads], or null
  const void* a_dst;     // [rows, heads], or null
  int64_t a_dst_stride;
  bool vector;
  void* stats;           // [rows, heads, 4]: a_dst, lse / log 2, <grad, out> - grad_lse, 0
  const void* positive;  // as in ForwardArgs, with the share behind it; or null
  void* grad_dst;        // [rows, heads]: the gradient in a_dst, of `positive`; or null
  double slope;
};

// One direction of the gradient. By source: own is x, other is grad, the stats are gathered. By
// destination: own is grad, other is x, a_src is gathered.
struct BackwardArgs {
  Csr csr;
  bool by_source;
  bool ids_alone;  // edges bring nothing but ids, which may be read 16 bytes at a time
  int64_t heads, channels;
  const void* own;  // [rows, heads, channels]
  int64_t own_stride;
  const void* other;  // [columns, heads, channels]
  int64_t other_stride;
  const void* a_src;  // of the sources, or null
  int64_t a_src_stride;
  const void* stats;
  Scores scores;
  void* grad_other_sum;  // by source: [rows, heads, channels], the gradient in x; or null
  void* grad_row;        // [rows, heads]: the gradient in a_src or a_dst; or null
  void* grad_edge;       // [edges, heads] by id; or null
  void* grad_score;      // the same in the accumulator's type; or null
  Hubs hubs;             // partial [capacity, heads * channels + heads]
};

struct SoftmaxArgs {
  Csr csr;
  int64_t heads;
  const void* scores;  // [edges, heads]; the gradient in alpha where alpha is given
  const void* alpha;   // [edges, heads], or null
  void* out;           // [edges, heads], or null
  void* sum;           // [rows, heads]: the sum of scores alone is made; or null
  Dtype sum_dtype;
  Hubs hubs;  // no partial results: a block takes a whole hub
};

struct Gatv2Args {
  Csr csr;
  bool by_source;
  int64_t heads, channels;
  const void* own;  // [rows, heads, channels]: x_dst, or x_src by source
  int64_t own_stride;
  const void* other;  // [columns, heads, channels]
  int64_t other_stride;
  const void* att;   // [heads, channels]
  const void* edge;  // [edges, heads, channels] by id, or null
  double slope;
  const void* grad;  // [edges, heads] by id; null in the forward pass
  void* scores;      // forward: [edges, heads] by id
  void* grad_own;    // [rows, heads, channels], or null
  void* grad_att;    // [rows, heads, channels], or null
  void* grad_edge;   // [edges, heads, channels] by id, or null
  Hubs hubs;         // partial [capacity, 2 heads * channels]
};

// Raises flags (with check_ids for indices and ids too) and lists the chunks of hubs.
cudaError_t launch_prepare(const Csr& csr, const Hubs& hubs, bool check_ids, cudaStream_t stream);
cudaError_t launch_forward(Dtype dtype, const Plan& plan, const ForwardArgs& args,
                           cudaStream_t stream);
cudaError_t launch_stats(Dtype dtype, const StatsArgs& args, cudaStream_t stream);
cudaError_t launch_backward(Dtype dtype, const Plan& plan, const BackwardArgs& args,
                            cudaStream_t stream);
cudaError_t launch_softmax(Dtype dtype, const Plan& plan, const SoftmaxArgs& args,
                           cudaStream_t stream);
cudaError_t launch_gatv2(Dtype dtype, const Plan& plan, const Gatv2Args& args, cudaStream_t stream);

}  // namespace gpuprims::attention
