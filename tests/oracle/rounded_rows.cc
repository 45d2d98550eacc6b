#include "tests/oracle/rounded_rows.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "raggemm/format.h"
#include "tests/oracle/values.h"

namespace raggemm {

namespace {

int64_t BlockOf(const GroupedGemmProblem& problem, const MatrixView& lhs) {
  return *problem.lhs_block != 0 ? *problem.lhs_block : std::max<int64_t>(lhs.cols, 1);
}

}  // namespace

RoundedRow QuantizeRow(const GroupedGemmProblem& problem, const MatrixView& lhs, int64_t i) {
  RoundedRow row = {.block = BlockOf(problem, lhs)};
  for (int64_t begin = 0; begin < lhs.cols; begin += row.block) {
    std::vector<float> elements;
    for (int64_t k = begin; k < std::min(begin + row.block, lhs.cols); ++k) {
      elements.push_back(static_cast<float>(ToDouble(problem.lhs, lhs.At(i, k))));
    }
    bool is_finite = true;
    float largest = 0;
    for (float x : elements) {
      is_finite = is_finite && std::isfinite(x);
      largest = std::max(largest, std::abs(x));
    }
    const float scale = is_finite ? largest / 127.0F : std::numeric_limits<float>::quiet_NaN();
    row.scales.push_back(scale);
    for (float x : elements) {
      const float code = scale > 0 ? std::nearbyint(x / scale) : 0.0F;
      row.codes.push_back(static_cast<int>(std::clamp(code, -127.0F, 127.0F)));
    }
  }
  return row;
}

IntegerRhs::IntegerRhs(const GroupedGemmProblem& problem, const GroupProduct& group)
    : group_(group),
      rhs_(group.terms[0].rhs),
      values_(problem, false),
      is_doubled_(problem.rhs.dtype == DType::kF4E2M1FN) {}

int IntegerRhs::Element(int64_t k, int64_t j) const {
  const double element = values_.Element(rhs_.At(k, j), group_.rhs_zero);
  return static_cast<int>(is_doubled_ ? 2 * element : element);
}

float IntegerRhs::Scale(int64_t k, int64_t j) const {
  const auto scale = static_cast<float>(values_.Scale(rhs_.At(k, j), group_.rhs_scale));
  return is_doubled_ ? 0.5F * scale : scale;
}

bool IntegerRhs::ParamsChangeAt(int64_t k) const {
  const int64_t before = rhs_.At(k - 1, 0), at = rhs_.At(k, 0);
  return values_.ScaleIndex(before, group_.rhs_scale) != values_.ScaleIndex(at, group_.rhs_scale) ||
         values_.ZeroIndex(before, group_.rhs_zero) != values_.ZeroIndex(at, group_.rhs_zero);
}

std::vector<int64_t> StretchesOf(const GroupedGemmProblem& problem, const GroupProduct& group) {
  const MatrixView& lhs = group.terms[0].lhs;
  const IntegerRhs rhs(problem, group);
  std::vector<int64_t> begins;
  for (int64_t k = 0; k < lhs.cols; ++k) {
    if (k % BlockOf(problem, lhs) == 0 || rhs.ParamsChangeAt(k)) begins.push_back(k);
  }
  begins.push_back(lhs.cols);
  return begins;
}

RoundedProduct::RoundedProduct(const GroupedGemmProblem& problem, const GroupProduct& group)
    : problem_(problem), group_(group) {
  // If out is empty, lhs and rhs may have different extents of k.
  if (group.out.rows == 0 || group.out.cols == 0) return;
  const IntegerRhs rhs(problem, group);
  begins_ = StretchesOf(problem, group);
  for (int64_t k = 0; k < begins_.back(); ++k) {
    for (int64_t j = 0; j < group.out.cols; ++j) elements_.push_back(rhs.Element(k, j));
  }
  for (size_t stretch = 0; stretch + 1 < begins_.size(); ++stretch) {
    for (int64_t j = 0; j < group.out.cols; ++j) scales_.push_back(rhs.Scale(begins_[stretch], j));
  }
}

// Sums of integers are exact in float64, too.
std::vector<float> RoundedProduct::Row(int64_t i) const {
  const int64_t n = group_.out.cols;
  std::vector<float> totals(n);
  const RoundedRow row = QuantizeRow(problem_, group_.terms[0].lhs, i);
  for (size_t stretch = 0; stretch + 1 < begins_.size(); ++stretch) {
    std::vector<double> sums(n);
    for (int64_t k = begins_[stretch]; k < begins_[stretch + 1]; ++k) {
      const double code = row.codes[k], *elements = elements_.data() + k * n;
      for (int64_t j = 0; j < n; ++j) sums[j] += code * elements[j];
    }
    const float lhs_scale = row.ScaleAt(begins_[stretch]), *rhs_scales = scales_.data() + stretch * n;
    for (int64_t j = 0; j < n; ++j) {
      totals[j] = std::fma(lhs_scale * rhs_scales[j], static_cast<float>(sums[j]), totals[j]);
    }
  }
  return totals;
}

}  // namespace raggemm
