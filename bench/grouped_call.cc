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
  problem_.lhs.dtype = c.in;
  problem_.rhs.dtype = c.rhs();
  problem_.out.dtype = c.out;
  if (c.quantization == nullptr) return;
  if (c.quantization->scales_rows) problem_.lhs_scale = Array{nullptr, DType::kF32, {rows, 1}};
  if (!c.quantization->rhs_scale) return;
  problem_.rhs_scale = Array{nullptr, *c.quantization->rhs_scale, {groups, c.scales_of_group() / c.n, c.n}};
}

absl::Status GroupedCall::Run(const Operands& at, const Options& options) {
  return GroupedGemm(ProblemAt(at), options);
}

const GroupedGemmProblem& GroupedCall::ProblemAt(const Operands& at) {
  problem_.lhs.data = at.lhs;
  problem_.rhs.data = at.rhs;
  problem_.out.data = at.out;
  if (problem_.lhs_scale) problem_.lhs_scale->data = at.lhs_scale;
  if (problem_.rhs_scale) problem_.rhs_scale->data = at.rhs_scale;
  return problem_;
}

}  // namespace raggemm::bench
