// The operands of a case, in several sets. Successive calls use successive sets, so no weights (wgrad: gradients) are
// in a cache.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "bench/cases.h"
#include "bench/peers/peer.h"
#include "raggemm/grouped_gemm.h"
#include "raggemm/plan.h"

namespace raggemm::bench {

// Bytes beyond the caches of two threads. Some CPUs have more L3 cache, but each core reaches only a part of it.
inline constexpr int64_t kBeyondCaches = int64_t{512} << 20;

// Memory with random numbers of type `dtype`. A case always has the same numbers: they do not depend on the size of the
// arena. Numbers are in [-1,1], or in (0,1] for types that only scales have, and are rounded to `precision`. Quantized
// numbers are not rounded, and reach up to the largest power of two of their format.
class Arena {
 public:
  Arena(int64_t bytes, DType dtype, DType precision);

  char* data() const { return memory_.get(); }

 private:
  struct Free {
    void operator()(char* memory) const { std::free(memory); }
  };
  int64_t bytes_;
  std::unique_ptr<char, Free> memory_;
};

// Pointers to one set of operands. An operand has the matrices of all groups one after the other, even for groups
// without rows.
struct Operands {
  char *lhs, *rhs, *out;
  char *lhs_scale = nullptr, *rhs_scale = nullptr;
};

struct SetBytes {
  int64_t lhs, rhs, out;
  int64_t lhs_scale = 0, rhs_scale = 0;
};
SetBytes SetBytesOf(const Case& c);
// Returns how many operand sets exceed the caches (kBeyondCaches bytes). Only weights of groups with rows count, or all
// gradients in wgrad.
int64_t SetsOf(const Case& c);

// Returns the matrices that a call finds in no cache: the weights of groups with rows, or all gradients in wgrad. Joins
// adjacent matrices.
std::vector<absl::Span<const char>> MatricesOf(const Case& c, const Operands& at);

// Memory with random operand sets for any one of `cases`. All must have the same Case::in and Case::quantization. lhs
// and rhs are rounded to `precision` (see Arena).
class Memory {
 public:
  Memory(const std::vector<Case>& cases, DType precision);

  Operands SetOf(const Case& c, int64_t set) const;

 private:
  std::unique_ptr<Arena> lhs_, rhs_, out_, lhs_scale_, rhs_scale_;
};

// The products of one set of operands, one for each group with rows.
class Series {
 public:
  Series(const Case& c, const Operands& at);
  GemmSeries gemms() const;

  struct Span {
    char* begin;
    int64_t bytes;
  };
  const std::vector<Span>& empty_gradients() const { return empty_gradients_; }

 private:
  Mode mode_;
  DType in_, dtype_rhs_, dtype_out_, dtype_scale_ = DType::kF32;
  int64_t k_, n_, block_ = 0;
  std::vector<int64_t> rows_;
  std::vector<const void*> lhs_, rhs_;
  std::vector<void*> out_;
  std::vector<const void*> lhs_scale_, rhs_scale_;
  std::vector<Span> empty_gradients_;
};

// One call of our library, with the types, mode, K and N of a case. `sizes` may differ from the sizes of the case.
class GroupedCall {
 public:
  GroupedCall(const Case& c, const std::vector<int64_t>& sizes);
  GroupedCall(const GroupedCall&) = delete;
  GroupedCall& operator=(const GroupedCall&) = delete;

  absl::Status Run(const Operands& at, const Options& options);
  const GroupedGemmProblem& ProblemAt(const Operands& at);

 private:
  std::vector<int32_t> sizes_;
  GroupedGemmProblem problem_;
};

// Widens lhs and rhs of `narrow` from bf16 to f32, into the operands of `wide`. Both series have the same shape.
void WidenBf16(const GemmSeries& narrow, const GemmSeries& wide, int threads);

void ZeroBytes(char* begin, int64_t bytes, int threads);

}  // namespace raggemm::bench
