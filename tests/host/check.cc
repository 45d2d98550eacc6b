#include "tests/host/check.h"

#include <algorithm>
#include <mutex>
#include <numeric>
#include <random>

#include "absl/status/status.h"
#include "tests/host/random_fill.h"
#include "tests/oracle/values.h"

namespace raggemm::host {
namespace {

constexpr int64_t kSampleSize = 4096;

// Makes random integers that are the same with every standard library.
class Below {
 public:
  explicit Below(uint64_t seed) : engine_(seed) {}
  int64_t operator()(int64_t limit) { return static_cast<int64_t>(engine_() % static_cast<uint64_t>(limit)); }

 private:
  std::mt19937_64 engine_;
};

Check Compare(const GroupedGemmProblem& problem, absl::Span<const int64_t> elements, const Reference& reference) {
  Check check;
  check.compared = static_cast<int64_t>(elements.size());
  for (size_t i = 0; i < elements.size(); ++i) {
    const double got = ToDouble(problem.out, elements[i]), want = reference.want[i];
    const double error = ErrorInUnitsOfBound(got, want, reference.bound[i], problem.out.dtype);
    if (error > check.max_error) {
      check = {check.compared, error, elements[i], got, want};
    }
  }
  return check;
}

absl::StatusOr<Check> CheckElements(const GroupedGemmProblem& problem, absl::Span<const int64_t> elements) {
  std::mutex mutex;
  Check worst;
  absl::Status status;
  ParallelChunks(static_cast<int64_t>(elements.size()), [&](int64_t begin, int64_t end) {
    const auto chunk = elements.subspan(begin, end - begin);
    const absl::StatusOr<Reference> reference = ComputeReferenceAt(problem, chunk);
    std::lock_guard lock(mutex);
    if (!reference.ok()) {
      status = reference.status();
      return;
    }
    Check check = Compare(problem, chunk, *reference);
    check.compared += worst.compared;
    if (check.max_error >= worst.max_error) worst = check;
    worst.compared = check.compared;
  });
  if (!status.ok()) return status;
  return worst;
}

// Returns the linear indices of a random sample of out, at least kSampleSize unless out is empty. Indices may repeat.
// For each group with elements, the sample has the last element, and kEdge elements each of the last row and the last
// column.
std::vector<int64_t> SampleOut(const GroupedGemmProblem& problem, absl::Span<const GroupProduct> products,
                               uint64_t seed) {
  constexpr int64_t kEdge = 8;
  Below below(seed);
  std::vector<MatrixView> groups;
  for (const GroupProduct& product : products) {
    if (product.out.rows * product.out.cols > 0) groups.push_back(product.out);
  }
  std::vector<int64_t> sample;
  for (const MatrixView& out : groups) {
    sample.push_back(out.At(out.rows - 1, out.cols - 1));
    for (int64_t i = 0; i < kEdge; ++i) {
      sample.push_back(out.At(out.rows - 1, below(out.cols)));
      sample.push_back(out.At(below(out.rows), out.cols - 1));
    }
    const int64_t inner = kSampleSize / static_cast<int64_t>(groups.size());
    for (int64_t i = 0; i < inner; ++i) sample.push_back(out.At(below(out.rows), below(out.cols)));
  }
  const int64_t elements = ElementCount(problem.out);
  const int64_t anywhere = std::max(kSampleSize / 16, kSampleSize - static_cast<int64_t>(sample.size()));
  for (int64_t i = 0; elements > 0 && i < anywhere; ++i) sample.push_back(below(elements));
  return sample;
}

}  // namespace

int64_t MultiplyAdds(absl::Span<const GroupProduct> products) {
  int64_t sum = 0;
  for (const GroupProduct& product : products) {
    for (const GroupProduct::Term& term : product.terms) sum += product.out.rows * product.out.cols * term.lhs.cols;
  }
  return sum;
}

absl::StatusOr<Check> CheckOut(const GroupedGemmProblem& problem, uint64_t seed) {
  constexpr int64_t kFullCheckMultiplyAdds = 10'000'000;
  const absl::StatusOr<std::vector<GroupProduct>> products = GroupProducts(problem);
  if (!products.ok()) return products.status();
  if (MultiplyAdds(*products) > kFullCheckMultiplyAdds) {
    return CheckElements(problem, SampleOut(problem, *products, seed));
  }
  std::vector<int64_t> all(ElementCount(problem.out));
  std::iota(all.begin(), all.end(), int64_t{0});
  return CheckElements(problem, all);
}

}  // namespace raggemm::host
