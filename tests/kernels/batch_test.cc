// What is computed together is what would be computed alone, to the bit. The reference plays no part here.
#include <cstdint>
#include <vector>

#include "gtest/gtest.h"
#include "raggemm/element.h"
#include "raggemm/grouped_gemm.h"
#include "tests/oracle/values.h"
#include "tests/support/bits_rule.h"
#include "tests/support/isa_fixture.h"
#include "tests/support/variants.h"

namespace raggemm::test {
namespace {

// One of `count` equal parts of an array, cut along its first axis. Keeps the dims that the part points to.
class Segment {
 public:
  Segment(const Array& whole, int64_t index, int64_t count) : dims_(whole.dims.begin(), whole.dims.end()) {
    dims_[0] /= count;
    data_ = static_cast<char*>(whole.data) + index * (ElementCount(whole) / count) * SizeOf(whole.dtype);
    dtype_ = whole.dtype;
  }
  Array array() const { return {data_, dtype_, dims_}; }

 private:
  std::vector<int64_t> dims_;
  void* data_;
  DType dtype_;
};

class Batch : public IsaTest {
 protected:
  // Problem p, replica r of the call, as a call of its own with sizes [G].
  void ExpectPartAlone(const TestProblem& whole, const ProblemSpec& spec, int64_t p, int64_t r) {
    const int64_t segments = spec.problems * spec.replicas, segment = p * spec.replicas + r;
    const bool shared_rhs = spec.mode != RaggedMode::kRaggedK;
    const Segment lhs(whole.problem.lhs, segment, segments);
    const Segment rhs(whole.problem.rhs, shared_rhs ? p : segment, shared_rhs ? spec.problems : segments);
    const Segment expected(whole.problem.out, segment, segments);
    TestProblem alone(spec);  // for its own out
    const Segment out(alone.problem.out, segment, segments);
    alone.ClearOut();
    GroupedGemmProblem problem = whole.problem;
    static_cast<Array&>(problem.lhs) = lhs.array();
    static_cast<Array&>(problem.rhs) = rhs.array();
    static_cast<Array&>(problem.out) = out.array();
    const std::vector<int64_t> sizes(spec.sizes.begin() + segment * spec.groups,
                                     spec.sizes.begin() + (segment + 1) * spec.groups);
    for (BufferDescriptor* x : {&problem.lhs, &problem.rhs, &problem.out}) {
      for (RaggedDims* dims : {&x->first_dims, &x->last_dims}) {
        if (dims->has_value()) *dims = alone.AddIntegers(DType::kS64, {spec.groups}, sizes);
      }
    }
    ASSERT_EQ(GroupedGemm(problem, With(GetParam())), absl::OkStatus()) << Describe(spec);
    ASSERT_TRUE(HasBits(out.array(), ValuesOf(expected.array()))) << Describe(spec);
  }
};
RAGGEMM_FOR_EACH_ISA(Batch);

TEST_P(Batch, EveryProblemAndReplicaIsWhatItIsAlone) {
  for (RaggedMode mode : {RaggedMode::kRaggedM, RaggedMode::kRaggedK, RaggedMode::kRaggedN}) {
    ProblemSpec base{.mode = mode, .problems = 3, .replicas = 2, .groups = 3, .m = 21, .n = 37, .k = 19};
    base.sizes = {5, 0, 9, 5, 0, 9, 1, 2, 3, 1, 2, 3, 0, 19, 0, 0, 19, 0};
    if (mode == RaggedMode::kRaggedK) {  // which sums over replicas
      base.replicas = 1;
      base.sizes = {5, 0, 9, 1, 2, 3, 0, 19, 0};
    }
    for (const ProblemSpec& spec : StorageVariants(base)) {
      if (spec.lhs_grouped) continue;  // has one replica only
      const TestProblem whole(spec);
      ASSERT_EQ(GroupedGemm(whole.problem, With(GetParam())), absl::OkStatus()) << Describe(spec);
      for (int64_t p = 0; p < spec.problems; ++p) {
        for (int64_t r = 0; r < spec.replicas; ++r) {
          ExpectPartAlone(whole, spec, p, r);
          ASSERT_FALSE(HasFatalFailure());
        }
      }
    }
  }
}

// Each replica begins a chain: 5000 of one row each are a sum of 5000 roundings.
TEST_P(Batch, ErrorsOfManyReplicasAreWithinTheBound) {
  ProblemSpec spec{.mode = RaggedMode::kRaggedK, .replicas = 5000, .n = 2};
  spec.sizes.assign(spec.replicas, 1);
  const TestProblem test(spec);
  for (int64_t i = 0; i < spec.replicas; ++i) {
    StoreRounded(test.problem.lhs, i, 1.1);
    for (int64_t j = 0; j < spec.n; ++j) StoreRounded(test.problem.rhs, i * spec.n + j, 1);
  }
  ASSERT_EQ(GroupedGemm(test.problem, With(GetParam())), absl::OkStatus());
  EXPECT_TRUE(IsWithinBound(test.problem.out, ComputeReference(test.problem).value()));
}

// A row has the same bits in a large group, in a small one, and alone.
TEST_P(Batch, RowsDoNotDependOnTheirCompany) {
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    ProblemSpec spec{.groups = 1, .m = 90, .n = 150, .k = 600, .sizes = {90}, .lhs = dtype, .rhs = dtype};
    const TestProblem whole(spec);
    ASSERT_EQ(GroupedGemm(whole.problem, With(GetParam())), absl::OkStatus());
    TestProblem some(spec);
    for (int64_t rows : {1, 2, 5, 15, 45}) {
      for (int64_t part = 0; part < 90 / rows; part += 1 + 20 / rows) {
        const Segment lhs(whole.problem.lhs, part, 90 / rows), out(some.problem.out, part, 90 / rows);
        const Segment expected(whole.problem.out, part, 90 / rows);
        GroupedGemmProblem problem = whole.problem;
        static_cast<Array&>(problem.lhs) = lhs.array();
        static_cast<Array&>(problem.out) = out.array();
        problem.lhs.first_dims = problem.out.first_dims = some.AddIntegers(DType::kS32, {1}, {rows});
        ASSERT_EQ(GroupedGemm(problem, With(GetParam())), absl::OkStatus());
        ASSERT_TRUE(HasBits(out.array(), ValuesOf(expected.array()))) << rows << " rows, part " << part;
      }
    }
  }
}

}  // namespace
}  // namespace raggemm::test
