// What is timed: a sweep over rows per group, and recorded routing of real layers.
#ifndef RAGGEMM_BENCH_CASES_H_
#define RAGGEMM_BENCH_CASES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "bench/peers/peer.h"
#include "proto/case.pb.h"
#include "raggemm/types.h"

namespace raggemm::bench {

// Operands of few bits, forward, as checkpoints have them.
struct Quantization {
  absl::string_view name;  // "int4": what a filter sees
  DType lhs, rhs, out;
  std::optional<DType> rhs_scale;  // for each column of a group, in blocks of K
  int64_t block = 0;               // so many steps, or the most that divide K too; 0: all
  bool scales_rows = false;        // f32 for each row of lhs
};

// One call. Matrices as in peer.h; lhs and rhs have one type where they are not quantized.
struct Case {
  std::string name;  // "2048x768/rows8" (K x N), or that of the recording
  bool recorded = false;
  Mode mode = Mode::kForward;
  DType in = DType::kF32, out = DType::kF32;   // of lhs and of out
  const Quantization* quantization = nullptr;  // null: rhs is as lhs
  int threads = 1;
  int64_t k = 0, n = 0;
  std::vector<int64_t> sizes;  // rows of each group, empty ones included

  int64_t rows() const;
  int64_t active_groups() const;
  DType rhs() const { return quantization != nullptr ? quantization->rhs : in; }
  int64_t scales_of_group() const;  // how many there are of rhs
  // "forward/bf16-f32/2048x768/rows8/threads2", "quantized/int4-f32/...": what a filter sees.
  std::string Id() const;
};

// The same with f32 operands, quantized ones with bf16.
Case Widened(Case c);

absl::string_view NameOf(Mode mode);

// kQuick: one shape, a few row counts, a few recordings. kDefault: two shapes, f32 and bf16 -> f32, 2 threads, all row
// counts forward, some of them transposed, wgrad and quantized, recordings forward, quantized decoding. kFull:
// everything.
enum class Selection : uint8_t { kQuick, kDefault, kFull };

// In an order that keeps cases of one input type together, quantized ones first: they take part of their share of the
// time. The regular expression is searched for in Id(), the empty
// one is everywhere. InvalidArgument where it is none, and where no case is left.
absl::StatusOr<std::vector<Case>> SelectCases(const proto::GroupedGemmCases& recorded, Selection selection,
                                              const std::string& filter);

}  // namespace raggemm::bench

#endif  // RAGGEMM_BENCH_CASES_H_
