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

template <typename Row, size_t n>
constexpr std::array<absl::string_view, n> NamesIn(const Row (&rows)[n]) {
  std::array<absl::string_view, n> names;
  std::transform(std::begin(rows), std::end(rows), names.begin(), [](const Row& row) { return row.name; });
  return names;
}

Names NamesOf(ArithmeticId) {
  static constexpr auto kNames = NamesIn(kArithmetics);
  return kNames;
}

Names NamesOf(Precision) {
  static constexpr auto kNames = NamesIn(kSplittings);
  return kNames;
}

Names NamesOf(Layout) {
  static constexpr absl::string_view kNames[] = {"strided", "packed", "column_blocks", "word_blocks"};
  return kNames;
}

Names NamesOf(DType) {
  static constexpr auto kNames = NamesIn(kFormats);
  return kNames;
}

Names NamesOf(Activation) {
  static const std::vector<absl::string_view> kNames(std::begin(kActivations), std::end(kActivations));
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

// Returns the names of ISAs in the order of Isa, which is the reverse of the order of AllIsas.
Names NamesOf(Isa) {
  static const std::vector<absl::string_view> names = [] {
    std::vector<absl::string_view> all;
    for (Isa isa : AllIsas()) all.insert(all.begin(), NameOf(isa));
    return all;
  }();
  return names;
}

Names NamesOf(Executor) {
  static constexpr absl::string_view kNames[] = {"auto", "openmp", "pool", "serial"};
  return kNames;
}

Names NamesOf(Gate) {
  static constexpr absl::string_view kNames[] = {"none", "separate", "halves", "interleaved"};
  return kNames;
}

Names NamesOf(WeightOn) {
  static constexpr absl::string_view kNames[] = {"output", "input"};
  return kNames;
}

std::string Describe(const ProblemSpec& spec) { return FieldsText(spec); }

}  // namespace raggemm::test
