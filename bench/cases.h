// Cases of the benchmark: equal groups with a range of rows, and recorded routing of real layers.
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

// Quantized operands like those of checkpoints, only for forward products.
struct Quantization {
  absl::string_view name;  // Part of Case::Id(), like "int4".
  DType lhs, rhs, out;
  std::optional<DType> rhs_scale;  // Type of the scales of rhs: one per column and block of K.
  int64_t block = 0;               // Steps of K that share a scale, reduced to a divisor of K. 0: all.
  bool scales_rows = false;        // True if each row of lhs has an f32 scale.
};

// One call. The matrices are those of peer.h. lhs and rhs have the same type unless they are quantized.
struct Case {
  std::string name;  // "2048x768/rows8" (K x N), or the name of a recording.
  bool recorded = false;
  Mode mode = Mode::kForward;
  DType in = DType::kF32, out = DType::kF32;   // Types of lhs and out.
  const Quantization* quantization = nullptr;  // Null: rhs has the type of lhs.
  int threads = 1;
  int64_t k = 0, n = 0;
  std::vector<int64_t> sizes;  // Rows of each group, possibly 0.

  int64_t rows() const;
  int64_t active_groups() const;
  DType rhs() const { return quantization != nullptr ? quantization->rhs : in; }
  int64_t scales_of_group() const;  // Scales of rhs in a group.
  // Returns the text that filters match: "forward/bf16-f32/2048x768/rows8/threads2", "quantized/int4-f32/...".
  std::string Id() const;
};

// Returns the case with f32 operands, or with bf16 operands if it is quantized.
Case Widened(Case c);

absl::string_view NameOf(Mode mode);

// The cases of a run.
enum class Selection : uint8_t {
  kQuick,  // One shape, a few row counts, a few recordings.
  // Two shapes, f32 and bf16 -> f32, 2 threads. All row counts forward, some of them transposed, wgrad and quantized.
  // Recordings forward, and quantized decoding.
  kDefault,
  kFull,  // All cases.
};

// Returns the cases of a selection whose Id() contains the regular expression `filter`. Cases of one input type stand
// together. Quantized cases come first, because they do not need all of their time. Returns InvalidArgument if the
// filter is no regular expression or matches no case.
absl::StatusOr<std::vector<Case>> SelectCases(const proto::GroupedGemmCases& recorded, Selection selection,
                                              const std::string& filter);

}  // namespace raggemm::bench

#endif  // RAGGEMM_BENCH_CASES_H_
