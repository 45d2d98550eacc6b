#include "bench/check_results.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "absl/strings/str_cat.h"
#include "bench/grouped_call.h"
#include "kernels/problem.h"
#include "tests/oracle/values.h"

namespace raggemm::bench {
namespace {

constexpr size_t kReferenceElements = 128;
// Comparing with ours takes a quarter of a million elements, evenly spread, so that no contender waits for it long.
constexpr int64_t kComparedElements = 1 << 18;

absl::Status Wrong(int64_t element, double got, double want) {
  return absl::InternalError(absl::StrCat("out[", element, "] is ", got, ", expected ", want));
}

}  // namespace

absl::StatusOr<ResultCheck> ResultCheck::For(const Case& c, const Operands& at) {
  ResultCheck check(c);
  const int64_t count = SetBytesOf(c).out / SizeOf(c.out);
  check.dims_ = {count};
  check.elements_ = {0, count - 1};
  std::mt19937_64 random(1);
  while (check.elements_.size() < kReferenceElements) {
    check.elements_.push_back(static_cast<int64_t>(random() % static_cast<uint64_t>(count)));
  }
  GroupedCall call(c, c.sizes);
  absl::StatusOr<Reference> reference = ComputeReferenceAt(call.ProblemAt(at), check.elements_);
  if (!reference.ok()) return reference.status();
  check.reference_ = *std::move(reference);
  return check;
}

absl::Status ResultCheck::Run(const Contender& contender) {
  const size_t bytes = static_cast<size_t>(SetBytesOf(case_).out);
  std::memset(contender.result, 0xff, bytes);  // a NaN in every format
  if (absl::Status status = contender.run(0); !status.ok()) return status;
  const Array got{contender.result, case_.out, dims_};
  if (absl::Status status = CompareWithReference(got); !status.ok()) return status;
  if (!first_.empty()) return CompareWithFirst(got);
  first_.assign(contender.result, contender.result + bytes);
  return absl::OkStatus();
}

absl::Status ResultCheck::CompareWithReference(const Array& got) const {
  for (size_t i = 0; i < elements_.size(); ++i) {
    const double value = ToDouble(got, elements_[i]), want = reference_.want[i];
    if (!(ErrorInUnitsOfBound(value, want, reference_.bound[i], case_.out) <= 1))
      return Wrong(elements_[i], value, want);
  }
  return absl::OkStatus();
}

// No sum of products of numbers within [-1,1] is larger than its length, which bounds the error of both sides.
absl::Status ResultCheck::CompareWithFirst(const Array& got) const {
  const auto length = static_cast<double>(
      case_.mode == Mode::kWgrad ? *std::max_element(case_.sizes.begin(), case_.sizes.end()) : case_.k);
  const double sums = 2 * RelativeErrorOfSum(kArithmetics[0], length) * length;
  const Array first{const_cast<char*>(first_.data()), case_.out, dims_};
  // Odd, so that it goes through all columns of a row length that is a power of two.
  const int64_t step = dims_[0] / kComparedElements | 1;
  for (int64_t i = 0; i < dims_[0]; i += step) {
    const double value = ToDouble(got, i), want = ToDouble(first, i);
    const double rounding = 2 * FormatOf(case_.out).Epsilon() * std::abs(want);
    if (!(std::abs(value - want) <= sums + rounding)) return Wrong(i, value, want);
  }
  return absl::OkStatus();
}

}  // namespace raggemm::bench
