#include "bench/grouped_call.h"

#include <numeric>

namespace raggemm::bench {

GroupedCall::GroupedCall(const Case& c, const std::vector<int64_t>& sizes) : sizes_(sizes.begin(), sizes.end()) {
  const int64_t rows = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  const auto groups = static_cast<int64_t>(sizes.size());
  const Array dims_array{sizes_.data(), DType::kS32, {groups}};
  problem_.lhs.dims = {rows, c.k};
  problem_.lhs.first_dims = dims_array;
  switch (c.mode) {
    case Mode::kForward:
      problem_.rhs.dims = {groups, c.k, c.n};
      problem_.out.dims = {rows, c.n};
      problem_.out.first_dims = dims_array;
      break;
    case Mode::kForwardTransposed:
      problem_.rhs.dims = {groups, c.n, c.k};
      problem_.rhs.is_trans = true;
      problem_.out.dims = {rows, c.n};
      problem_.out.first_dims = dims_array;
      break;
    case Mode::kWgrad:
      problem_.lhs.is_trans = true;
      problem_.rhs.dims = {rows, c.n};
      problem_.rhs.first_dims = dims_array;
      problem_.out.dims = {groups, c.k, c.n};
      break;
  }
  problem_.lhs.dtype = problem_.rhs.dtype = c.in;
  problem_.out.dtype = c.out;
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
