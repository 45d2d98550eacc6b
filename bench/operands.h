// Where the operands of a case lie: in sets, one for each of a series of calls, so that every call finds its weights
// (wgrad: their gradients) in memory and not in a cache.
#ifndef RAGGEMM_BENCH_OPERANDS_H_
#define RAGGEMM_BENCH_OPERANDS_H_

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

// More than the caches of any CPU that this has been run on.
inline constexpr int64_t kBeyondCaches = int64_t{512} << 20;

// Numbers within [-1,1], the same for any size, so that a case finds the same ones wherever its operands lie. Pages of
// the ordinary size, as operands have outside of here. Values are rounded to `precision` and stored as `dtype`: an f32
// arena in the precision of bf16 is the widened bf16 arena. Of quantized formats, which have a precision of their own,
// half of their range; of formats of scales alone within (0,1].
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

// Whole operands, each group after the other; of forward's rhs also the groups without rows.
struct Operands {
  char *lhs, *rhs, *out;
  char *lhs_scale = nullptr, *rhs_scale = nullptr;
};

// Bytes of one set.
struct SetBytes {
  int64_t lhs, rhs, out;
  int64_t lhs_scale = 0, rhs_scale = 0;
};
SetBytes SetBytesOf(const Case& c);
// As many as have kBeyondCaches of active weights (wgrad: gradients) in all.
int64_t SetsOf(const Case& c);

// Lists what of one set is beyond the caches, all sets taken together: weights of groups with rows, adjacent ones as
// one; for wgrad all gradients.
std::vector<absl::Span<const char>> MatricesOf(const Case& c, const Operands& at);

// Enough for any of the cases, one at a time. Their `in` and quantization must be one. `precision` as in Arena.
class Memory {
 public:
  Memory(const std::vector<Case>& cases, DType precision);

  Operands SetOf(const Case& c, int64_t set) const;

 private:
  std::unique_ptr<Arena> lhs_, rhs_, out_, lhs_scale_, rhs_scale_;
};

// One set, group by group, without the groups that have no rows.
class Series {
 public:
  Series(const Case& c, const Operands& at);
  GemmSeries gemms() const;

  // Places of groups without rows; those of wgrad must become zero.
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

// Our side of a case: one call of the library. Types, K and N are those of the case; `sizes` may be others.
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

// What a peer needs besides products, as fast as memory allows. Of every product lhs and rhs: from bf16 to the f32
// operands of `wide`, a series of the same shape.
void WidenBf16(const GemmSeries& narrow, const GemmSeries& wide, int threads);

void ZeroBytes(char* begin, int64_t bytes, int threads);

}  // namespace raggemm::bench

#endif  // RAGGEMM_BENCH_OPERANDS_H_
