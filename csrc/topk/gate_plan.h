// topk_gate: from a problem's sizes to an algorithm, a grid and shared memory, as plan.h does for
// topk. Bits depend on n, k, dtype and options alone: rows never change how a row is added up.
#pragma once
#include <algorithm>
#include <cstdint>

#include "common/dtype.h"

namespace gpuprims {

enum class GateAlgo : int32_t {
  lanes = 1,  // 8, 16 or 32 lanes a row, logits in registers: no bias, no groups, short rows
  warp = 2,   // a warp a row, keys in shared memory: anything
};

constexpr const char* gate_algo_name(GateAlgo algo) {
  return algo == GateAlgo::lanes ? "lanes" : "warp";
}

namespace gate_tuning {
constexpr int kMaxExperts = 2048;
constexpr int kMaxK = 64;
constexpr int kItems = 16;        // logits a lane of `lanes` holds
constexpr int kThreads = 128;     // a block, at most
constexpr int kResident = 16;     // blocks of `lanes` a multiprocessor: 32 registers, 14 KB each
constexpr int kCandidates = 128;  // pairs that a warp of `warp` ranks; more are cut exactly first
constexpr int64_t kSmem = 48 * 1024;  // what a block has without asking
}  // namespace gate_tuning

struct GateProblem {
  Dtype dtype = Dtype::f32;
  int64_t rows = 1;
  int64_t n = 1;
  int64_t k = 1;
  int64_t num_groups = 1;
  int64_t topk_groups = 1;
  bool biased = false;
};

struct GatePlan {
  GateAlgo algo = GateAlgo::warp;
  int lanes = 32;   // a row
  int threads = 0;  // a block
  int64_t grid = 0;
  bool grouped = false;   // some groups are dropped
  int group_lanes = 1;    // of a warp that share a group
  int64_t warp_smem = 0;  // bytes a warp, of `warp`
  int64_t smem = 0;       // dynamic, a block
  int64_t traffic = 0;    // bytes that move through device memory
};

// Lanes a row: k must stay below 3/4 of them, or the lanes' best logits bound nothing.
constexpr int gate_lanes(int64_t n, int64_t k) {
  for (int lanes : {8, 16, 32})
    if (n <= lanes * gate_tuning::kItems && k * 4 <= lanes * 3) return lanes;
  return 0;
}

inline GatePlan plan_gate(const GateProblem& p) {
  namespace t = gate_tuning;
  GatePlan plan;
  const int64_t real = p.dtype == Dtype::f64 ? 8 : 4;  // bytes of a weight, of a score, of a key
  plan.traffic = p.rows * (p.n * dtype_bytes(p.dtype) + p.k * (real + 8));
  plan.grouped = p.topk_groups >= 1 && p.topk_groups < p.num_groups;
  if (p.rows == 0 || p.n == 0 || p.k == 0) return plan;  // grid 0: nothing to launch
  const bool routers = p.dtype == Dtype::f32 || p.dtype == Dtype::bf16;  // what routers compute in
  const int lanes = p.biased || plan.grouped || !routers ? 0 : gate_lanes(p.n, p.k);
  if (lanes) {
    plan.algo = GateAlgo::lanes;
    plan.lanes = lanes;
    plan.threads = t::kThreads;
  } else {
    while (plan.grouped && plan.group_lanes * 2 * p.num_groups <= 32) plan.group_lanes *= 2;
    const int64_t keys = (p.n + 3) / 4 * 4 + (plan.grouped ? (p.num_groups + 3) / 4 * 4 : 0);
    plan.warp_smem = keys * real + (t::kCandidates + t::kMaxK) * 2 * real;
    const int64_t warps = std::clamp<int64_t>(t::kSmem / plan.warp_smem, 1, t::kThreads / 32);
    plan.threads = static_cast<int>(warps) * 32;
    plan.smem = warps * plan.warp_smem;
  }
  const int64_t block_rows = plan.threads / plan.lanes;
  plan.grid = std::min<int64_t>((p.rows + block_rows - 1) / block_rows, INT32_MAX);
  return plan;
}

}  // namespace gpuprims
