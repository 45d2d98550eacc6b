// Tests tests/oracle/reference.cc with numbers that are easily multiplied by hand.
#include "tests/oracle/reference.h"

#include <cmath>
#include <cstdint>
#include <deque>
#include <limits>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace raggemm::test {
namespace {

using testing::DoubleEq;
using testing::ElementsAre;

class ReferenceTest : public testing::Test {
 protected:
  BufferDescriptor Matrix(std::vector<int64_t> dims, std::vector<double> values) {
    BufferDescriptor matrix;
    static_cast<Array&>(matrix) = Values(std::move(dims), std::move(values));
    return matrix;
  }

  Array Values(std::vector<int64_t> dims, std::vector<double> values) {
    dims_.push_back(std::move(dims));
    values_.push_back(std::move(values));
    return {values_.back().data(), DType::kF64, dims_.back()};
  }

  Array Sizes(std::vector<int64_t> sizes, std::vector<int64_t> dims = {}) {
    if (dims.empty()) dims = {static_cast<int64_t>(sizes.size())};
    dims_.push_back(std::move(dims));
    sizes_.push_back(std::move(sizes));
    return {sizes_.back().data(), DType::kS64, dims_.back()};
  }

  BufferDescriptor Out(std::vector<int64_t> dims) {
    int64_t elements = 1;
    for (int64_t dim : dims) elements *= dim;
    return Matrix(std::move(dims), std::vector<double>(elements));
  }

  // Returns all expected values. Checks that ComputeReferenceAt returns the same.
  std::vector<double> Want() {
    const absl::StatusOr<Reference> all = ComputeReference(problem_);
    EXPECT_TRUE(all.ok()) << all.status();
    for (int64_t i = 0; i < ElementCount(problem_.out); ++i) {
      const absl::StatusOr<Reference> one = ComputeReferenceAt(problem_, {i});
      EXPECT_EQ(one->want[0], all->want[i]) << i;
      EXPECT_EQ(one->bound[0], all->bound[i]) << i;
    }
    return all->want;
  }

  GroupedGemmProblem problem_;

 private:
  std::deque<std::vector<int64_t>> dims_, sizes_;
  std::deque<std::vector<double>> values_;
};

TEST_F(ReferenceTest, RaggedM) {
  problem_.lhs = Matrix({4, 2}, {1, 2, 3, 4, 5, 6, 7, 8});
  problem_.rhs = Matrix({2, 2, 1}, {10, 1, 1, -1});
  problem_.out = Out({4, 1});
  problem_.lhs.first_dims = problem_.out.first_dims = Sizes({1, 2});
  EXPECT_THAT(Want(), ElementsAre(12, -1, -1, 0));

  problem_.rhs = Matrix({2, 1, 2}, {10, 1, 1, -1});  // [G,N,K]
  problem_.rhs.is_trans = true;
  problem_.lhs = Matrix({2, 4}, {1, 3, 5, 7, 2, 4, 6, 8});  // [K,M]
  problem_.lhs.is_trans = true;
  problem_.lhs.last_dims = Sizes({1, 2});
  EXPECT_THAT(Want(), ElementsAre(12, -1, -1, 0));

  problem_.lhs =
      // The matrix [K,1] of the first group, then [K,2] of the second group.
      Matrix({2, 4}, {1, 2, 3, 5, 4, 6, 0, 0});
  problem_.lhs.is_trans = true;
  problem_.lhs.last_dims = Sizes({1, 2});
  problem_.lhs.layout = Layout::kPacked;
  EXPECT_THAT(Want(), ElementsAre(12, -1, -1, 0));
}

TEST_F(ReferenceTest, RaggedMWithProblemsAndReplicas) {
  problem_.lhs = Matrix({8, 1}, {1, 2, 3, 4, 5, 6, 7, 8});  // Two problems, each with two replicas of two rows.
  problem_.rhs = Matrix({4, 1, 1}, {1, 10, 100, 1000});
  problem_.out = Out({8, 1});
  problem_.lhs.first_dims = problem_.out.first_dims = Sizes({1, 1, 0, 1, 2, 0, 0, 2}, {2, 2, 2});
  EXPECT_THAT(Want(), ElementsAre(1, 20, 30, 0, 500, 600, 7000, 8000));
  problem_.alpha = Values({4}, {2, 3, 4, 5});  // One value for each group of each problem.
  EXPECT_THAT(Want(), ElementsAre(2, 60, 90, 0, 2000, 2400, 35000, 40000));
  problem_.alpha = Values({8}, {2, 3, 4, 5, 6, 7, 8, 9});  // One value for each group of each replica.
  EXPECT_THAT(Want(), ElementsAre(2, 60, 150, 0, 3000, 3600, 63000, 72000));
}

TEST_F(ReferenceTest, RaggedK) {
  problem_.lhs = Matrix({4, 1}, {1, 2, 3, 4});
  problem_.lhs.is_trans = true;
  problem_.rhs = Matrix({4, 2}, {1, 10, 1, 10, 1, 10, 1, 10});
  problem_.out = Out({2, 1, 2});
  problem_.lhs.first_dims = problem_.rhs.first_dims = Sizes({0, 3});
  EXPECT_THAT(Want(), ElementsAre(0, 0, 6, 60));

  problem_.lhs = Matrix({1, 4}, {1, 2, 3, 4});  // [M,K]
  problem_.lhs.last_dims = Sizes({0, 3});
  problem_.rhs = Matrix({2, 4}, {1, 1, 1, 1, 10, 10, 10, 10});  // [N,K]
  problem_.rhs.is_trans = true;
  problem_.rhs.last_dims = Sizes({0, 3});
  EXPECT_THAT(Want(), ElementsAre(0, 0, 6, 60));
}

TEST_F(ReferenceTest, RaggedKSumsReplicas) {
  problem_.lhs = Matrix({4, 1}, {1, 2, 3, 4});  // One problem with two replicas of two rows each.
  problem_.lhs.is_trans = true;
  problem_.rhs = Matrix({4, 1}, {1, 1, 1, 1});
  problem_.out = Out({2, 1, 1});
  problem_.lhs.first_dims = problem_.rhs.first_dims = Sizes({1, 1, 0, 1}, {1, 2, 2});
  EXPECT_THAT(Want(), ElementsAre(1, 2 + 3));
}

TEST_F(ReferenceTest, RaggedN) {
  problem_.lhs = Matrix({1, 2}, {1, 10});
  problem_.rhs = Matrix({2, 3}, {1, 2, 3, 4, 5, 6});
  problem_.out = Out({1, 3});
  problem_.rhs.last_dims = problem_.out.last_dims = Sizes({1, 1});
  EXPECT_THAT(Want(), ElementsAre(41, 52, 0));

  problem_.lhs = Matrix({2, 1, 2}, {1, 10, 100, 1000});  // [G,M,K]
  EXPECT_THAT(Want(), ElementsAre(41, 5200, 0));

  problem_.rhs = Matrix({3, 2}, {1, 4, 2, 5, 3, 6});  // [N,K]
  problem_.rhs.is_trans = true;
  problem_.rhs.first_dims = Sizes({1, 1});
  EXPECT_THAT(Want(), ElementsAre(41, 5200, 0));
}

TEST_F(ReferenceTest, RaggedNPackedOut) {
  problem_.lhs = Matrix({2, 1}, {1, 10});
  problem_.rhs = Matrix({1, 3}, {1, 2, 3});
  problem_.out = Out({2, 3});
  problem_.rhs.last_dims = problem_.out.last_dims = Sizes({1, 2});
  EXPECT_THAT(Want(), ElementsAre(1, 2, 3, 10, 20, 30));
  problem_.out.layout = Layout::kPacked;
  EXPECT_THAT(Want(), ElementsAre(1, 10, 2, 3, 20, 30));
}

TEST_F(ReferenceTest, Uniform) {
  problem_.lhs = Matrix({2, 1, 2}, {1, 2, 3, 4});
  problem_.rhs = Matrix({2, 2, 1}, {1, 10, 100, 1000});
  problem_.out = Out({2, 1, 1});
  EXPECT_THAT(Want(), ElementsAre(21, 4300));
}

TEST_F(ReferenceTest, AllRagged) {
  problem_.lhs = Matrix({5}, {1, 2, 3, 4, 5});  // A 1x1 and a 2x2 matrix.
  problem_.rhs = Matrix({4}, {1, 2, 10, 100});  // A 1x2 and a 2x1 matrix.
  problem_.out = Out({5});                      // A 1x2 and a 2x1 matrix. Element 4 belongs to no group.
  problem_.lhs.first_dims = problem_.out.first_dims = Sizes({1, 2});
  problem_.lhs.last_dims = problem_.rhs.first_dims = Sizes({1, 2});
  problem_.rhs.last_dims = problem_.out.last_dims = Sizes({2, 1});
  for (BufferDescriptor* x : {&problem_.lhs, &problem_.rhs, &problem_.out}) x->layout = Layout::kPacked;
  EXPECT_THAT(Want(), ElementsAre(1, 2, 320, 540, 0));
}

TEST_F(ReferenceTest, AxisBoundary) {
  problem_.lhs = Matrix({2, 2, 1}, {1, 2, 3, 4});  // [M,K], with K in two axes.
  problem_.lhs.axis_boundary = 1;
  problem_.rhs = Matrix({1, 2, 1, 1}, {1, 10});  // [G,K1,K2,N], with K = K1*K2.
  problem_.rhs.axis_boundary = 3;
  problem_.out = Out({2, 1});
  problem_.lhs.first_dims = problem_.out.first_dims = Sizes({2});
  EXPECT_THAT(Want(), ElementsAre(21, 43));
}

TEST_F(ReferenceTest, GroupOffset) {
  problem_.lhs = Matrix({3, 1}, {1, 2, 3});
  problem_.rhs = Matrix({1, 1, 1}, {10});
  problem_.out = Out({3, 1});
  problem_.lhs.first_dims = problem_.out.first_dims = Sizes({1, 1, 1});
  problem_.group_offset = Sizes({1}, {1});
  problem_.bias = Values({1, 1}, {0.5});  // For group 1, the only processed group.
  EXPECT_THAT(Want(), ElementsAre(0, 20.5, 0));
}

TEST_F(ReferenceTest, Epilogue) {
  problem_.lhs = Matrix({3, 1}, {1, 2, 3});
  problem_.rhs = Matrix({2, 1, 1}, {1, 1});
  problem_.out = Out({3, 1});
  problem_.lhs.first_dims = problem_.out.first_dims = Sizes({1, 1});
  problem_.c = Values({3, 1}, {100, 200, 300});
  EXPECT_THAT(Want(), ElementsAre(101, 202, 300));
  problem_.alpha = Values({}, {2});
  problem_.beta = Values({2}, {0.5, 1});
  problem_.bias = Values({2, 1}, {1000, 2000});
  EXPECT_THAT(Want(), ElementsAre(1052, 2204, 300));
  problem_.c = Values({3, 1}, {std::numeric_limits<double>::quiet_NaN(), 200, 300});
  problem_.beta = Values({2}, {0, 1});
  EXPECT_THAT(Want(), ElementsAre(1002, 2204, 300));
}

TEST_F(ReferenceTest, Bound) {
  problem_.lhs = Matrix({2, 256}, std::vector<double>(512, -1.0));
  problem_.rhs = Matrix({1, 256, 1}, std::vector<double>(256, 1.0));
  problem_.out = Out({2, 1});
  problem_.lhs.first_dims = problem_.out.first_dims = Sizes({1});
  EXPECT_THAT(ComputeReference(problem_)->bound, ElementsAre(DoubleEq(0x1p-52 * (259 * 256 + 256)), 0.0));
}

// Large bounds would hide wrong results.
TEST(ReferenceOfF32, BoundsAreSmallAndDenormalsCount) {
  float lhs = 1.5, rhs = -2.5, out = 0, scale = 3;
  const int64_t dims[] = {1, 1, 1};
  GroupedGemmProblem problem;
  static_cast<Array&>(problem.lhs) = {&lhs, DType::kF32, dims};
  static_cast<Array&>(problem.rhs) = {&rhs, DType::kF32, dims};
  static_cast<Array&>(problem.out) = {&out, DType::kF32, dims};
  const auto expect = [&](double want) {
    const absl::StatusOr<Reference> reference = ComputeReference(problem);
    ASSERT_TRUE(reference.ok()) << reference.status();
    EXPECT_NEAR(reference->want[0], want, 1e-6 * std::abs(want));
    EXPECT_LT(reference->bound[0], 1e-4 * std::abs(want));
  };
  expect(-3.75);
  rhs = 2.5;
  problem.activation = Activation::kSilu;
  expect(3.75 / (1 + std::exp(-3.75)));
  problem.activation = Activation::kGelu;
  expect(3.75 * 0.5 * std::erfc(-3.75 * M_SQRT1_2));
  problem.activation.reset();
  int8_t byte = -5;
  static_cast<Array&>(problem.rhs) = {&byte, DType::kS8, dims};
  problem.rhs_scale = {&scale, DType::kF32, {}};
  expect(1.5 * -5 * 3);

  lhs = 0x1p-140F;  // A denormal. Products of bf16 would flush it to zero.
  rhs = 0x1p120F;
  static_cast<Array&>(problem.rhs) = {&rhs, DType::kF32, dims};
  problem.rhs_scale.reset();
  EXPECT_EQ(ComputeReference(problem)->want[0], 0x1p-20);
}

TEST(Bound, AllowsForDenormalsThatAreFlushed) {
  const uint16_t tiny = 0x1f80;  // 2^-64
  uint16_t values[] = {tiny, tiny, 0};
  const int64_t dims[] = {1, 1, 1};
  GroupedGemmProblem problem;
  static_cast<Array&>(problem.lhs) = {&values[0], DType::kBF16, dims};
  static_cast<Array&>(problem.rhs) = {&values[1], DType::kBF16, dims};
  float out = 0;
  static_cast<Array&>(problem.out) = {&out, DType::kF32, dims};
  problem.bf16_sums = ArithmeticId::kPairs;
  const Reference reference = ComputeReference(problem).value();
  EXPECT_EQ(reference.want[0], 0x1p-128);
  EXPECT_GE(reference.bound[0], 0x1p-128);
  EXPECT_LE(reference.bound[0], 0x1p-123);
}

TEST(ErrorInUnitsOfBound, FiniteAndSpecialValues) {
  const double infinity = std::numeric_limits<double>::infinity(), nan = std::nan("");
  EXPECT_EQ(ErrorInUnitsOfBound(1.5, 1, 0.25, DType::kF32), 2);
  EXPECT_EQ(ErrorInUnitsOfBound(0, 0, 0, DType::kF32), 0);
  EXPECT_EQ(ErrorInUnitsOfBound(1e-30, 0, 0, DType::kF32), infinity);
  EXPECT_EQ(ErrorInUnitsOfBound(nan, nan, nan, DType::kF32), 0);
  EXPECT_EQ(ErrorInUnitsOfBound(1, nan, nan, DType::kF32), infinity);
  EXPECT_EQ(ErrorInUnitsOfBound(nan, 1, 1, DType::kF32), infinity);
  EXPECT_EQ(ErrorInUnitsOfBound(infinity, infinity, infinity, DType::kF32), 0);
  EXPECT_EQ(ErrorInUnitsOfBound(-infinity, infinity, infinity, DType::kF32), infinity);
  EXPECT_EQ(ErrorInUnitsOfBound(1, infinity, infinity, DType::kF32), infinity);
  EXPECT_EQ(ErrorInUnitsOfBound(infinity, 70000, 100, DType::kF16), 0);
  EXPECT_EQ(ErrorInUnitsOfBound(infinity, 60000, 100, DType::kF16), infinity);
}

}  // namespace
}  // namespace raggemm::test
