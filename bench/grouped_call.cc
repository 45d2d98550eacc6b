#include "bench/grouped_call.h"

#include <numeric>

namespace raggemm::bench {

GroupedCall::GroupedCall(const Case& c, const std::vector<int64_t>& sizes)
    : sizes_(sizes.begin(), sizes.end()), sizes_dims_{static_cast<int64_t>(sizes.size())} {
  const int64_t rows = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  const Array dims_array{sizes_.data(), DType::kS32, sizes_dims_};
  lhs_dims_ = {rows, c.k};
  problem_.lhs.first_dims = dims_array;
  switch (c.mode) {
    case Mode::kForward:
      rhs_dims_ = {sizes_dims_[0], c.k, c.n};
      out_dims_ = {rows, c.n};
      problem_.out.first_dims = dims_array;
      break;
    case Mode::kForwardTransposed:
      rhs_dims_ = {sizes_dims_[0], c.n, c.k};
      problem_.rhs.is_trans = true;
      out_dims_ = {rows, c.n};
      problem_.out.first_dims = dims_array;
      break;
    case Mode::kWgrad:
      problem_.lhs.is_trans = true;
      rhs_dims_ = {rows, c.n};
      problem_.rhs.first_dims = dims_array;
      out_dims_ = {sizes_dims_[0], c.k, c.n};
      break;
  }
  static_cast<Array&>(problem_.lhs) = {nullptr, c.in, lhs_dims_};
  static_cast<Array&>(problem_.rhs) = {nullptr, c.in, rhs_dims_};
  static_cast<Array&>(problem_.out) = {nullptr, c.out, out_dims_};
}

absl::Status GroupedCall::Run(const Operands& at, int threads) {
  return GroupedGemm(ProblemAt(at), {.threads = threads});
}

const GroupedGemmProblem& GroupedCall::ProblemAt(const Operands& at) {
  problem_.lhs.data = at.lhs;
  problem_.rhs.data = at.rhs;
  problem_.out.data = at.out;
  return problem_;
}

}  // namespace raggemm::bench
