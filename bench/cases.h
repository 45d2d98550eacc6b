// Cases of the benchmark, with equal groups or with group sizes recorded from real layers.
#pragma once

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

// Element types and scales of a quantized case. Such cases are forward products.
struct Quantization {
  absl::string_view name;  // Name in Case::Id(), like "int4".
  DType lhs, rhs, out;
  std::optional<DType> rhs_scale;  // Not set: rhs has no scales.
  // Steps of K that share a scale. 0: all steps. If K is not a multiple, the greatest common divisor counts.
  int64_t block = 0;
  bool scales_rows = false;
};

// A case of the benchmark: types, mode, threads and shapes. GemmSeries (peer.h) describes the matrices of each mode.
struct Case {
  std::string name;  // "2048x768/rows8" (K x N / rows of a group), or a recording's name.
  bool recorded = false;
  Mode mode = Mode::kForward;
  DType in = DType::kF32, out = DType::kF32;   // Types of lhs and out.
  const Quantization* quantization = nullptr;  // Null: rhs is not quantized, and has the type `in`.
  int threads = 1;
  int64_t k = 0, n = 0;
  std::vector<int64_t> sizes;  // Rows of each group.

  int64_t rows() const;
  int64_t active_groups() const;
  DType rhs() const { return quantization != nullptr ? quantization->rhs : in; }
  int64_t scales_of_group() const;
  // Returns the name that filters match, like "forward/bf16-f32/2048x768/rows8/threads2" or "quantized/int4-f32/...".
  std::string Id() const;
};

// Returns the same case with wider operands: bf16 if `c` is quantized, otherwise f32. An s32 result becomes f32.
Case Widened(Case c);

absl::string_view NameOf(Mode mode);

enum class Selection : uint8_t {
  kQuick,  // A sample of kDefault: one shape with a few row counts, two recordings.
  // Two shapes and the recorded group sizes, on 2 threads. Operands are f32, bf16 or quantized. Results are f32, or s32
  // for products of integers. Only forward cases without quantization have all row counts.
  kDefault,
  kFull,
};

// Returns the cases of a selection whose Id() contains a match of the regular expression `filter`. Cases with the same
// input type and quantization are adjacent. Quantized cases come first, so that other cases can use the time that is
// left. Returns InvalidArgument if the filter is wrong or matches no case.
absl::StatusOr<std::vector<Case>> SelectCases(const proto::GroupedGemmCases& recorded, Selection selection,
                                              const std::string& filter);

}  // namespace raggemm::bench
