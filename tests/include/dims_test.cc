#include <type_traits>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "raggemm/problem.h"

namespace raggemm {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(DimsTest, CopyTheirSource) {
  GroupedGemmProblem problem;
  std::vector<int64_t> kept = {4, 64, 32};
  problem.lhs.dims = {8, 64};
  problem.rhs.dims = kept;
  problem.out.dims = std::vector<int64_t>{8, 32};
  kept = {0, 0, 0};
  EXPECT_THAT(problem.lhs.dims, ElementsAre(8, 64));
  EXPECT_THAT(problem.rhs.dims, ElementsAre(4, 64, 32));
  EXPECT_THAT(problem.out.dims, ElementsAre(8, 32));
}

TEST(DimsTest, InitializeAnArrayInOneExpression) {
  const int64_t dims[] = {2, 3};
  EXPECT_THAT((Array{nullptr, DType::kF32, {}}).dims, IsEmpty());
  EXPECT_THAT((Array{nullptr, DType::kF32, {5}}).dims, ElementsAre(5));
  EXPECT_THAT((Array{nullptr, DType::kF32, dims}).dims, ElementsAre(2, 3));
  EXPECT_THAT((Array{nullptr, DType::kF32, absl::MakeConstSpan(dims, 1)}).dims, ElementsAre(2));
}

// Dims inherits a constructor that takes the length of the vector. Numbers must not convert to Dims by it.
TEST(DimsTest, AreNotMadeFromANumber) { EXPECT_FALSE((std::is_convertible_v<int64_t, Dims>)); }

TEST(DimsTest, MayExceedTheInlineCapacity) {
  const std::vector<int64_t> many = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  EXPECT_EQ(absl::Span<const int64_t>(Dims(many)), absl::MakeConstSpan(many));
}

}  // namespace
}  // namespace raggemm
