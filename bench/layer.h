// The buffers of one recorded layer, and one call on them.
#ifndef RAGGEMM_BENCH_LAYER_H_
#define RAGGEMM_BENCH_LAYER_H_

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "proto/case.pb.h"
#include "raggemm/grouped_gemm.h"

namespace raggemm::bench {

// Ragged M, forward: [rows,K] x [experts,K,N] -> f32 [rows,N]; lhs and rhs of one dtype. There are as many sets of
// weights as it takes for each call to find its own in memory, not in a cache. Only weights of experts that got rows
// are ever touched.
class Layer {
 public:
  Layer(const proto::GroupedGemmCase& recorded, DType dtype);

  // What any implementation must do and move.
  double flops() const { return 2.0 * static_cast<double>(rows_ * k_ * n_); }
  double bytes() const;

  // The first result, compared with the reference on some elements. InternalError where it is wrong.
  absl::Status Verify();
  // The next call, on the next set of weights.
  absl::Status Compute(int threads);

 private:
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  using Memory = std::unique_ptr<char, Free>;

  Memory NewWeights() const;
  void Fill(char* begin, int64_t elements) const;

  const DType dtype_;
  const int64_t k_, n_, experts_;
  std::vector<int32_t> sizes_;
  int64_t rows_ = 0, active_experts_ = 0;
  std::vector<int64_t> lhs_dims_, rhs_dims_, out_dims_, sizes_dims_;
  Memory lhs_, out_;
  std::vector<Memory> weights_;
  size_t next_weights_ = 0;
  GroupedGemmProblem problem_;
};

}  // namespace raggemm::bench

#endif  // RAGGEMM_BENCH_LAYER_H_
