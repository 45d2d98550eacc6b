#include "tests/support/field_text.h"

#include <algorithm>
#include <array>
#include <iterator>

#include "raggemm/format.h"

namespace raggemm::test {

Names NamesOf(RaggedMode) {
  static constexpr absl::string_view kNames[] = {"ragged_m", "ragged_k", "ragged_n", "uniform", "all_ragged"};
  return kNames;
}

Names NamesOf(Bf16Sums) {
  static constexpr absl::string_view kNames[] = {"auto", "tiles", "pairs"};
  return kNames;
}

Names NamesOf(Layout) {
  static constexpr absl::string_view kNames[] = {"strided", "packed"};
  return kNames;
}

Names NamesOf(DType) {
  static constexpr auto kNames = [] {
    std::array<absl::string_view, kDTypes> names;
    std::transform(std::begin(kFormats), std::end(kFormats), names.begin(), [](const Format& f) { return f.name; });
    return names;
  }();
  return kNames;
}

Names NamesOf(ParameterRows) {
  static constexpr absl::string_view kNames[] = {"scalar", "per_group", "per_replica"};
  return kNames;
}

Names NamesOf(Cliff) {
  static constexpr absl::string_view kNames[] = {"behind", "before"};
  return kNames;
}

Names NamesOf(Isa) {
  static constexpr absl::string_view kNames[] = {"scalar", "avx2", "avx512", "avx512_bf16"};
  return kNames;
}

Names NamesOf(Executor) {
  static constexpr absl::string_view kNames[] = {"auto", "openmp", "pool", "serial"};
  return kNames;
}

std::string Describe(const ProblemSpec& spec) { return FieldsText(spec); }

}  // namespace raggemm::test
