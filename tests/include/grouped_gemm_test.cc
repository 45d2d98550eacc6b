// Tests that a program needs only the public headers to plan a call, print the plan, and compute.
#include "raggemm/grouped_gemm.h"

#include <cstdint>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace raggemm::test {
namespace {

// Three rows: one of the first expert, two of the second.
class TwoExperts : public testing::Test {
 protected:
  TwoExperts() {
    static_cast<Array&>(problem_.lhs) = {lhs_, DType::kF32, lhs_dims_};
    static_cast<Array&>(problem_.rhs) = {rhs_, DType::kF32, rhs_dims_};
    static_cast<Array&>(problem_.out) = {out_, DType::kF32, out_dims_};
    problem_.lhs.first_dims = problem_.out.first_dims = Array{sizes_, DType::kS32, sizes_dims_};
  }

  float lhs_[6] = {1, 2, 3, 4, 5, 6}, rhs_[4] = {1, 10, 100, 1000}, out_[3] = {};
  int32_t sizes_[2] = {1, 2};
  const int64_t lhs_dims_[2] = {3, 2}, rhs_dims_[3] = {2, 2, 1}, out_dims_[2] = {3, 1}, sizes_dims_[1] = {2};
  GroupedGemmProblem problem_;
};

TEST_F(TwoExperts, OneCall) {
  ASSERT_EQ(GroupedGemm(problem_), absl::OkStatus());
  EXPECT_EQ(std::vector<float>(out_, out_ + 3), (std::vector<float>{21, 4300, 6500}));
}

TEST_F(TwoExperts, PlanThenRun) {
  const WorkspaceCoefficients size = WorkspaceSizeFor(/*dims_arrays=*/2);
  std::vector<int64_t> workspace(size.constant + size.per_group * 2);
  const absl::StatusOr<Plan> plan = MakePlan(problem_, Options(), absl::MakeSpan(workspace));
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(out_[0], 0);
  for (int repeat = 0; repeat < 2; ++repeat) {
    out_[0] = out_[1] = out_[2] = -1;
    ASSERT_EQ(raggemm::Run(*plan), absl::OkStatus());
    EXPECT_EQ(std::vector<float>(out_, out_ + 3), (std::vector<float>{21, 4300, 6500}));
  }
  EXPECT_NE(ToString(*plan).find("ragged M"), std::string::npos);
}

}  // namespace
}  // namespace raggemm::test
