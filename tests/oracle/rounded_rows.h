// Computes products of rows that are quantized inside the call (GroupedGemmProblem::lhs_block), by the rule "Rounded
// rows" of raggemm/grouped_gemm.h.
#pragma once

#include <cstdint>
#include <vector>

#include "raggemm/problem.h"
#include "tests/oracle/dequantizer.h"
#include "tests/oracle/reference.h"

namespace raggemm {

// A row of lhs as codes of s8.
struct RoundedRow {
  int64_t block;                   // Steps of k in a block. The last block may be shorter.
  std::vector<int> codes = {};     // One for each step of k.
  std::vector<float> scales = {};  // One for each block.
  float ScaleAt(int64_t k) const { return scales[k / block]; }
};
// Quantizes row i of a matrix of lhs. The problem must have lhs_block.
RoundedRow QuantizeRow(const GroupedGemmProblem& problem, const MatrixView& lhs, int64_t i);

// The integers and the scales of a group's matrix of rhs.
class IntegerRhs {
 public:
  IntegerRhs(const GroupedGemmProblem& problem, const GroupProduct& group);
  // Returns element (k, j) minus its zero point. An element of f4e2m1fn counts twice.
  int Element(int64_t k, int64_t j) const;
  // Returns the scale of element (k, j), or 1 without scales. Halves it if rhs is f4e2m1fn.
  float Scale(int64_t k, int64_t j) const;
  // Returns true if steps k - 1 and k have different scales or zero points.
  bool ParamsChangeAt(int64_t k) const;

 private:
  const GroupProduct& group_;
  const MatrixView rhs_;
  const Dequantizer values_;
  const bool is_doubled_;
};

// Returns the first step of each stretch, then the number of steps. All rows of a group have the same stretches.
std::vector<int64_t> StretchesOf(const GroupedGemmProblem& problem, const GroupProduct& group);

// The product of one group.
class RoundedProduct {
 public:
  RoundedProduct(const GroupedGemmProblem& problem, const GroupProduct& group);
  bool empty() const { return elements_.empty(); }
  // Returns the totals of row i, before the epilogue.
  std::vector<float> Row(int64_t i) const;

 private:
  const GroupedGemmProblem& problem_;
  const GroupProduct& group_;
  std::vector<int64_t> begins_;   // First step of each stretch, then K.
  std::vector<double> elements_;  // [K,N]. The integers of rhs.
  std::vector<float> scales_;     // [stretches,N]. The scales of rhs.
};

}  // namespace raggemm
