#include "tests/fuzz/fuzz_case.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace raggemm::test {
namespace {

constexpr absl::string_view kBetween = " : ";

bool HasSizes(const ProblemSpec& spec, const std::vector<int64_t>& sizes) {
  const auto count = static_cast<int64_t>(sizes.size());
  return count == spec.problems * spec.replicas * spec.groups &&
         std::all_of(sizes.begin(), sizes.end(), [](int64_t size) { return size >= 0; });
}

// Of each segment.
bool SumsAtMost(const ProblemSpec& spec, int64_t extent) {
  for (int64_t begin = 0; begin < static_cast<int64_t>(spec.sizes.size()); begin += spec.groups) {
    const auto first = spec.sizes.begin() + begin;
    if (std::accumulate(first, first + spec.groups, int64_t{0}) > extent) return false;
  }
  return true;
}

bool ReplicasShareSizes(const ProblemSpec& spec) {
  for (size_t i = 0; i < spec.sizes.size(); ++i) {
    const int64_t group = static_cast<int64_t>(i) % spec.groups;
    const int64_t problem = static_cast<int64_t>(i) / (spec.groups * spec.replicas);
    if (spec.sizes[i] != spec.sizes[problem * spec.replicas * spec.groups + group]) return false;
  }
  return true;
}

// Without problems rhs and out do not tell how many groups are local.
bool OffsetFits(const ProblemSpec& spec) {
  if (spec.problems == 0) return !spec.group_offset.has_value() && !spec.local_groups.has_value();
  const int64_t offset = spec.group_offset.value_or(0), locals = spec.local_groups.value_or(spec.groups);
  return offset >= 0 && locals >= 0 && offset + locals <= spec.groups;
}

}  // namespace

std::string ToText(const FuzzCase& fuzz_case) {
  return absl::StrCat(FieldsText(fuzz_case.spec), kBetween, FieldsText(fuzz_case.way));
}

absl::StatusOr<FuzzCase> ParseFuzzCase(absl::string_view text) {
  FuzzCase parsed;
  const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(text, absl::MaxSplits(kBetween, 1));
  for (const absl::Status& status : {ParseFields(parts.first, parsed.spec), ParseFields(parts.second, parsed.way)}) {
    if (!status.ok()) return status;
  }
  if (!IsConsistent(parsed.spec)) return absl::InvalidArgumentError("sizes and extents do not fit together");
  return parsed;
}

Way RandomWay(Isa isa, Random& random) {
  static constexpr Executor kExecutors[] = {Executor::kAuto, Executor::kOpenMp, Executor::kPool, Executor::kSerial};
  return {.isa = isa,
          .executor = kExecutors[random.Below(4)],
          .threads = random.Below(9),
          .plugin = random.Coin(),
          .out_is_c = random.Coin()};
}

bool IsConsistent(const ProblemSpec& spec) {
  const int64_t least =
      std::min({spec.problems, spec.groups, spec.m, spec.n, spec.k, spec.slack, spec.gap_elements, spec.replicas - 1});
  if (least < 0 || !OffsetFits(spec) || (spec.beta && !spec.c)) return false;
  switch (spec.mode) {
    case RaggedMode::kRaggedM:
      return HasSizes(spec, spec.sizes) && SumsAtMost(spec, spec.m);
    case RaggedMode::kRaggedK:
      return HasSizes(spec, spec.sizes) && SumsAtMost(spec, spec.k);
    case RaggedMode::kRaggedN:
      return HasSizes(spec, spec.sizes) && SumsAtMost(spec, spec.n) && ReplicasShareSizes(spec);
    case RaggedMode::kUniform:
      return spec.problems == 1 && spec.replicas == 1;
    case RaggedMode::kAllRagged:
      return spec.replicas == 1 && HasSizes(spec, spec.sizes) && HasSizes(spec, spec.n_sizes) &&
             HasSizes(spec, spec.k_sizes);
  }
  return false;
}

}  // namespace raggemm::test
