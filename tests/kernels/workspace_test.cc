#include "kernels/check/workspace.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/check/problem.h"
#include "kernels/plan/schedule.h"
#include "kernels/run/run.h"
#include "raggemm/grouped_gemm.h"
#include "tests/support/bits_rule.h"
#include "tests/support/guarded_buffer.h"
#include "tests/support/variants.h"

namespace raggemm::test {
namespace {

// Workspace sizes must never change, because exported programs contain them.
TEST(WorkspaceSizeFor, IsFrozen) {
  const int64_t constants[] = {47, 63, 79, 95, 111, 127, 143}, per_group[] = {5, 7, 9, 11, 13, 15, 17};
  for (int arrays = 0; arrays <= 6; ++arrays) {
    EXPECT_EQ(WorkspaceSizeFor(arrays).constant, constants[arrays]);
    EXPECT_EQ(WorkspaceSizeFor(arrays).per_group, per_group[arrays]);
  }
}

int64_t SizeOfWorkspace(const TestProblem& test, const ProblemSpec& spec) {
  const WorkspaceCoefficients size = WorkspaceSizeFor(DimsArrays(test.problem).count());
  const int64_t groups = spec.problems * spec.replicas * spec.groups;
  return size.constant + size.per_group * groups;
}

ProblemSpec WithGroups(RaggedMode mode, int64_t groups, Random& random) {
  ProblemSpec spec{.mode = mode, .groups = groups, .m = 20, .n = 21, .k = 22};
  if (mode == RaggedMode::kUniform) spec.groups = std::min<int64_t>(groups, 3);
  if (mode == RaggedMode::kAllRagged) {
    for (std::vector<int64_t>* sizes : {&spec.sizes, &spec.n_sizes, &spec.k_sizes}) {
      for (int64_t g = 0; g < groups; ++g) sizes->push_back(random.Below(5));
    }
  } else if (mode != RaggedMode::kUniform) {
    spec.sizes = random.Sizes(groups, 20);
  }
  return spec;
}

// The workspace ends 0 to 56 bytes before an unmapped page. Its last elements, two per group, are spare and must stay
// unwritten. With all ragged, the arrays of sizes differ. If their copies in the workspace overlapped, the result would
// be wrong.
TEST(Workspace, ExactSizeIsEnough) {
  Random random(TestSeed());
  for (RaggedMode mode : kAllModes) {
    for (int64_t groups = 0; groups <= 40; ++groups) {
      const ProblemSpec spec = StorageVariants(WithGroups(mode, groups, random)).front();
      TestProblem test(spec);
      const std::vector<double> expected = ExpectedOut(test.problem).value();
      const auto elements = static_cast<size_t>(SizeOfWorkspace(test, spec));
      for (size_t gap = 0; gap < 64; gap += 8) {
        const GuardedBuffer memory(elements * sizeof(int64_t), gap);
        const absl::Span<int64_t> workspace(static_cast<int64_t*>(memory.data()), elements);
        test.ClearOut();
        const int64_t spare = 2 * spec.problems * spec.replicas * spec.groups;
        std::fill(workspace.end() - spare, workspace.end(), -77);
        const absl::StatusOr<Schedule> plan = MakeSchedule(test.problem, {}, workspace);
        ASSERT_TRUE(plan.ok()) << plan.status() << Describe(spec);
        ASSERT_EQ(raggemm::Run(*plan), absl::OkStatus());
        ASSERT_TRUE(HasBits(test.problem.out, expected)) << Describe(spec);
        ASSERT_TRUE(memory.SurroundingsIntact());
        ASSERT_EQ(std::count(workspace.end() - spare, workspace.end(), -77), spare) << Describe(spec);
      }
    }
  }
}

TEST(Workspace, TooSmallIsAnErrorWithBothSizes) {
  Random random(TestSeed());
  for (RaggedMode mode : kAllModes) {
    for (int64_t groups : {0, 1, 7, 8, 9}) {
      const ProblemSpec spec = StorageVariants(WithGroups(mode, groups, random)).front();
      const TestProblem test(spec);
      const int64_t elements = SizeOfWorkspace(test, spec);
      std::vector<int64_t> workspace(elements - 1);
      const absl::Status status = MakeSchedule(test.problem, {}, absl::MakeSpan(workspace)).status();
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
      for (int64_t number : {elements, elements - 1}) {
        EXPECT_NE(status.message().find(std::to_string(number)), absl::string_view::npos) << status;
      }
    }
  }
}

TEST(Workspace, MayNotOverlapAnOperand) {
  ProblemSpec spec{.groups = 2, .m = 200, .n = 20, .k = 20, .sizes = {90, 80}, .lhs = DType::kF64};
  const TestProblem test(spec);
  for (const Array* array :
       {static_cast<const Array*>(&test.problem.lhs), static_cast<const Array*>(&test.problem.out)}) {
    const uintptr_t aligned = (reinterpret_cast<uintptr_t>(array->data) + 7) / 8 * 8;
    const absl::Span<int64_t> workspace(reinterpret_cast<int64_t*>(aligned), 1000);
    const absl::Status status = MakeSchedule(test.problem, {}, workspace).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  }
}

TEST(Workspace, NullIsAnErrorForAnyLength) {
  const TestProblem test(ProblemSpec{.groups = 2, .m = 4, .n = 3, .k = 5, .sizes = {1, 3}});
  const absl::Status status = MakeSchedule(test.problem, {}, absl::Span<int64_t>(nullptr, 1000)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
}

// A sum over no replicas could be defined as zero. But the size of the workspace is computed from the groups of all
// replicas, which are none, so the workspace would be too small.
TEST(Workspace, RaggedKWithoutReplicasIsAnError) {
  const std::vector<int64_t> groups = {1, 0, 4096}, lhs = {0, 3}, rhs = {0, 5}, out = {4096, 3, 5};
  std::vector<float> results(4096 * 3 * 5);
  GroupedGemmProblem problem;
  problem.lhs.dims = lhs;
  problem.lhs.is_trans = true;
  problem.rhs.dims = rhs;
  problem.out.dims = out;
  problem.out.data = results.data();
  problem.lhs.first_dims = problem.rhs.first_dims = Array{nullptr, DType::kS32, groups};
  const absl::Status status = GroupedGemm(problem);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_NE(status.message().find("[1,0,4096]"), absl::string_view::npos) << status;
}

// There are 2^31 problems, each with 2^30 replicas, but no groups. The call must not loop over the replicas.
TEST(Workspace, EmptySegmentsTakeNoTime) {
  const std::vector<int64_t> groups = {int64_t{1} << 31, int64_t{1} << 30, 0}, lhs = {0, 3}, rhs = {0, 3, 5},
                             out = {0, 5};
  GroupedGemmProblem problem;
  problem.lhs.dims = lhs;
  problem.rhs.dims = rhs;
  problem.out.dims = out;
  problem.lhs.first_dims = problem.out.first_dims = Array{nullptr, DType::kS32, groups};
  EXPECT_EQ(GroupedGemm(problem), absl::OkStatus());
}

}  // namespace
}  // namespace raggemm::test
