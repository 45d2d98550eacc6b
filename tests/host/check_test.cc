#include "tests/host/check.h"

#include <cstdint>
#include <utility>

#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"
#include "tests/host/case_problem.h"
#include "tests/oracle/values.h"

namespace raggemm::host {
namespace {

CaseProblem Make(const std::string& text) {
  proto::GroupedGemmCase parsed;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &parsed)) << text;
  absl::StatusOr<proto::GroupedGemmCase> full = MakeExplicit(parsed);
  EXPECT_TRUE(full.ok()) << full.status();
  absl::StatusOr<CaseProblem> made = MakeCaseProblem(*full);
  EXPECT_TRUE(made.ok()) << made.status();
  return *std::move(made);
}

void Solve(const GroupedGemmProblem& problem) {
  const absl::StatusOr<Reference> reference = ComputeReference(problem);
  ASSERT_TRUE(reference.ok());
  for (size_t i = 0; i < reference->want.size(); ++i) StoreRounded(problem.out, i, reference->want[i]);
}

TEST(CheckTest, FindsTheWorstOfWrongElements) {
  const CaseProblem made = Make("K: 40 N: 30 group_sizes: [5,0,7,1]");
  Solve(made.problem);
  EXPECT_LE(CheckOut(made.problem, 1)->max_error, 1);
  const double bound = ComputeReferenceAt(made.problem, {77})->bound[0];
  for (const auto& [element, bounds] : {std::pair<int64_t, int>{12, 9}, {77, 60}, {200, 8}}) {
    StoreRounded(made.problem.out, element, ToDouble(made.problem.out, element) + bounds * bound);
  }
  const absl::StatusOr<Check> check = CheckOut(made.problem, 1);
  ASSERT_TRUE(check.ok());
  EXPECT_NEAR(check->max_error, 60, 1.5);
  EXPECT_EQ(check->worst, 77);
  EXPECT_EQ(check->compared, 13 * 30);
}

}  // namespace
}  // namespace raggemm::host
