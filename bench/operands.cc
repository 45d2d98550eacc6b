#include "bench/operands.h"

#include <algorithm>

#include "kernels/problem.h"

namespace raggemm::bench {

SetBytes SetBytesOf(const Case& c) {
  const int64_t rows = c.rows(), in = SizeOf(c.in), out = SizeOf(c.out);
  const int64_t matrices = static_cast<int64_t>(c.sizes.size()) * c.k * c.n;
  if (c.mode == Mode::kWgrad) return {rows * c.k * in, rows * c.n * in, matrices * out};
  return {rows * c.k * in, matrices * in, rows * c.n * out};
}

int64_t SetsOf(const Case& c) {
  const int64_t bytes = c.mode == Mode::kWgrad ? SetBytesOf(c).out : c.active_groups() * c.k * c.n * SizeOf(c.in);
  return std::max<int64_t>(1, (kBeyondCaches + bytes - 1) / bytes);
}

Memory::Memory(const std::vector<Case>& cases, DType precision) {
  SetBytes most = {0, 0, 0};
  for (const Case& c : cases) {
    const SetBytes set = SetBytesOf(c);
    const int64_t sets = SetsOf(c);
    most = {std::max(most.lhs, sets * set.lhs), std::max(most.rhs, sets * set.rhs), std::max(most.out, sets * set.out)};
  }
  const DType in = cases.empty() ? DType::kF32 : cases[0].in;
  lhs_ = std::make_unique<Arena>(most.lhs, in, precision);
  rhs_ = std::make_unique<Arena>(most.rhs, in, precision);
  out_ = std::make_unique<Arena>(most.out, DType::kF32, DType::kF32);
}

Operands Memory::SetOf(const Case& c, int64_t set) const {
  const SetBytes bytes = SetBytesOf(c);
  return {lhs_->data() + set * bytes.lhs, rhs_->data() + set * bytes.rhs, out_->data() + set * bytes.out};
}

Series::Series(const Case& c, const Operands& at) : mode_(c.mode), in_(c.in), dtype_out_(c.out), k_(c.k), n_(c.n) {
  const int64_t in = SizeOf(c.in), out = SizeOf(c.out), matrix = c.k * c.n;
  int64_t row = 0;
  for (size_t g = 0; g < c.sizes.size(); ++g) {
    const int64_t group = static_cast<int64_t>(g) * matrix;
    const bool wgrad = c.mode == Mode::kWgrad;
    if (c.sizes[g] == 0) {
      if (wgrad) empty_gradients_.push_back({at.out + group * out, matrix * out});
      continue;
    }
    rows_.push_back(c.sizes[g]);
    lhs_.push_back(at.lhs + row * c.k * in);
    rhs_.push_back(at.rhs + (wgrad ? row * c.n : group) * in);
    out_.push_back(at.out + (wgrad ? group : row * c.n) * out);
    row += c.sizes[g];
  }
}

GemmSeries Series::gemms() const {
  return {.mode = mode_,
          .lhs_dtype = in_,
          .rhs_dtype = in_,
          .out_dtype = dtype_out_,
          .k = k_,
          .n = n_,
          .rows = rows_,
          .lhs = lhs_,
          .rhs = rhs_,
          .out = out_};
}

}  // namespace raggemm::bench
