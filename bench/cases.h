// Cases of the benchmark. Some have equal groups, with 1 to 512 rows in each. Others have group sizes that were
// recorded from real layers.
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

// The element types and scales of a quantized case, like those of checkpoints. All quantized cases are forward
// products.
struct Quantization {
  absl::string_view name;  // Name in Case::Id(), like "int4".
  DType lhs, rhs, out;
  std::optional<DType> rhs_scale;  // Type of the scales of rhs. There is one scale for each column and block of K.
  // Steps of K that share a scale, reduced to their greatest common divisor with K. 0: all K.
  int64_t block = 0;
  bool scales_rows = false;  // True if each row of lhs has an f32 scale.
};

// A call that the benchmark measures. GemmSeries in peer.h describes its matrices. lhs and rhs have the same type
// unless they are quantized.
struct Case {
  std::string name;  // "2048x768/rows8" (K x N), or the name of a recording.
  bool recorded = false;
  Mode mode = Mode::kForward;
  DType in = DType::kF32, out = DType::kF32;   // Types of lhs and out.
  const Quantization* quantization = nullptr;  // Null: rhs has the type of lhs.
  int threads = 1;
  int64_t k = 0, n = 0;
  std::vector<int64_t> sizes;  // Number of rows of each group, possibly 0.

  int64_t rows() const;
  int64_t active_groups() const;
  DType rhs() const { return quantization != nullptr ? quantization->rhs : in; }
  int64_t scales_of_group() const;  // Returns the number of rhs scales in a group.
  // Returns the text that filters match: "forward/bf16-f32/2048x768/rows8/threads2", "quantized/int4-f32/...".
  std::string Id() const;
};

// Returns the same case with wider operands: bf16 if the case is quantized, otherwise f32.
Case Widened(Case c);

absl::string_view NameOf(Mode mode);

// Names for the cases that a run of the benchmark selects.
enum class Selection : uint8_t {
  kQuick,  // Cases of one shape with a few row counts, and a few recordings.
  // Two shapes, f32 or bf16 operands with f32 results, 2 threads. Forward cases have all row counts. Transposed, wgrad
  // and quantized cases have some of them. Recordings are forward cases, and some of them are quantized cases, too.
  kDefault,
  kFull,  // All cases.
};

// Returns the cases of a selection whose Id() contains the regular expression `filter`. Cases of one input type stand
// together. Quantized cases come first. They do not need their whole share of the time, and all later cases get the
// rest of it. Returns InvalidArgument if the filter is no regular expression or matches no case.
absl::StatusOr<std::vector<Case>> SelectCases(const proto::GroupedGemmCases& recorded, Selection selection,
                                              const std::string& filter);

}  // namespace raggemm::bench

#endif  // RAGGEMM_BENCH_CASES_H_
