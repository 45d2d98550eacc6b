#include "tests/fuzz/fuzz_case.h"

#include <algorithm>
#include <cstddef>
#include <initializer_list>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "raggemm/format.h"

namespace raggemm::test {
namespace {

constexpr absl::string_view kBetween = " : ", kMlp = "mlp ";

bool HasSizes(const ProblemSpec& spec, const std::vector<int64_t>& sizes) {
  const auto count = static_cast<int64_t>(sizes.size());
  return count == spec.problems * spec.replicas * spec.groups &&
         std::all_of(sizes.begin(), sizes.end(), [](int64_t size) { return size >= 0; });
}

// Whether the sizes of each segment do.
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

// Sizes of the groups and segments, numbered p*R + r, that are kept.
template <typename Keep>
FuzzCase KeepSizes(FuzzCase from, const Keep& keep) {
  ProblemSpec& spec = from.spec;
  for (std::vector<int64_t>* sizes : {&spec.sizes, &spec.n_sizes, &spec.k_sizes}) {
    std::vector<int64_t> kept;
    for (int64_t i = 0; i < static_cast<int64_t>(sizes->size()); ++i) {
      if (keep(i % spec.groups, i / spec.groups)) kept.push_back((*sizes)[i]);
    }
    *sizes = std::move(kept);
  }
  return from;
}

void AppendWithFewerGroups(const FuzzCase& from, std::vector<FuzzCase>& candidates) {
  const int64_t groups = from.spec.groups;
  if (groups < 2) return;
  for (const auto& [first, last] : std::initializer_list<std::pair<int64_t, int64_t>>{
           {0, groups / 2}, {groups / 2, groups}, {1, groups}, {0, groups - 1}}) {
    candidates.push_back(
        KeepSizes(from, [first = first, last = last](int64_t g, int64_t) { return g >= first && g < last; }));
    candidates.back().spec.groups = last - first;
  }
}

void AppendWithFewerSegments(const FuzzCase& from, std::vector<FuzzCase>& candidates) {
  const int64_t problems = from.spec.problems, replicas = from.spec.replicas;
  if (problems > 1) {
    candidates.push_back(KeepSizes(from, [=](int64_t, int64_t s) { return s / replicas < problems - 1; }));
    --candidates.back().spec.problems;
  }
  if (replicas > 1) {
    candidates.push_back(KeepSizes(from, [=](int64_t, int64_t s) { return s % replicas < replicas - 1; }));
    --candidates.back().spec.replicas;
  }
}

// The numbers below `value`, to 0 in steps that become shorter.
std::vector<int64_t> Smaller(int64_t value) {
  std::vector<int64_t> smaller;
  for (int64_t distance = value; distance > 0; distance /= 2) smaller.push_back(value - distance);
  return smaller;
}

// "name=1,2" with one number smaller.
std::vector<std::string> WithSmallerNumbers(absl::string_view word) {
  const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(word, absl::MaxSplits('=', 1));
  std::vector<std::string> words, items = absl::StrSplit(parts.second, ',');
  for (std::string& item : items) {
    int64_t value;
    if (parts.first == "seed" || !absl::SimpleAtoi(item, &value)) continue;
    const std::string kept = item;
    for (int64_t smaller : Smaller(value)) {
      item = absl::StrCat(smaller);
      words.push_back(absl::StrCat(parts.first, "=", absl::StrJoin(items, ",")));
    }
    item = kept;
  }
  return words;
}

// Each word left out, for the field's default, or with a number made smaller.
void AppendWithPlainerFields(const FuzzCase& from, std::vector<FuzzCase>& candidates) {
  const std::vector<std::string> words = absl::StrSplit(ToText(from), ' ');
  const auto append = [&](size_t i, const std::string& word) {
    std::vector<std::string> changed = words;
    changed[i] = word;
    const absl::StatusOr<FuzzCase> candidate = ParseFuzzCase(absl::StrJoin(changed, " "));
    if (candidate.ok()) candidates.push_back(*candidate);
  };
  for (size_t i = 0; i < words.size(); ++i) {
    if (!absl::StrContains(words[i], '=')) continue;
    append(i, "");
    for (const std::string& word : WithSmallerNumbers(words[i])) append(i, word);
  }
}

void AppendWithFewerSizes(const FuzzCase& from, std::vector<FuzzCase>& candidates) {
  for (size_t i = 0; i < from.mlp->sizes.size(); ++i) {
    MlpSpec& spec = *candidates.emplace_back(from).mlp;
    spec.sizes.erase(spec.sizes.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

bool IsConsistent(const FuzzCase& fuzz_case) {
  return fuzz_case.mlp ? IsConsistent(*fuzz_case.mlp) : IsConsistent(fuzz_case.spec);
}

std::vector<FuzzCase> Candidates(const FuzzCase& from) {
  std::vector<FuzzCase> candidates;
  if (from.mlp) {
    AppendWithFewerSizes(from, candidates);
  } else {
    AppendWithFewerGroups(from, candidates);
    AppendWithFewerSegments(from, candidates);
  }
  AppendWithPlainerFields(from, candidates);
  return candidates;
}

}  // namespace

std::string ToText(const FuzzCase& fuzz_case) {
  const std::string spec = fuzz_case.mlp ? absl::StrCat(kMlp, FieldsText(*fuzz_case.mlp)) : FieldsText(fuzz_case.spec);
  return absl::StrCat(spec, kBetween, FieldsText(fuzz_case.way));
}

absl::StatusOr<FuzzCase> ParseFuzzCase(absl::string_view text) {
  FuzzCase parsed;
  const bool is_mlp = absl::ConsumePrefix(&text, kMlp);
  if (is_mlp) parsed.mlp.emplace();
  const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(text, absl::MaxSplits(kBetween, 1));
  for (const absl::Status& status :
       {is_mlp ? ParseFields(parts.first, *parsed.mlp) : ParseFields(parts.first, parsed.spec),
        ParseFields(parts.second, parsed.way)}) {
    if (!status.ok()) return status;
  }
  if (!IsConsistent(parsed)) return absl::InvalidArgumentError("sizes and extents do not fit together");
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

// Whether the activation, its gate and the rows of lhs go together with the rest.
bool BlocksFit(const ProblemSpec& spec) {
  const bool is_f64 = spec.lhs == DType::kF64 || spec.rhs == DType::kF64 || spec.out == DType::kF64;
  if (spec.activation && (is_f64 || spec.out == DType::kS32)) return false;
  if (spec.gate ? !spec.activation || !IsMatrix(*spec.gate) || *spec.gate == DType::kF64
                : spec.activation == Activation::kSwigluOai) {
    return false;
  }
  return !spec.lhs_rows ||
         (*spec.lhs_rows > 0 && spec.mode == RaggedMode::kRaggedM && !spec.lhs_flipped && !IsQuantized(spec.lhs));
}

bool IsConsistent(const ProblemSpec& spec) {
  const int64_t least =
      std::min({spec.problems, spec.groups, spec.m, spec.n, spec.k, spec.slack, spec.gap_elements, spec.replicas - 1});
  if (least < 0 || !OffsetFits(spec) || (spec.beta && !spec.c) || !BlocksFit(spec)) return false;
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

bool IsConsistent(const MlpSpec& spec) {
  const auto fits = [&](DType weights) {  // blocks and bytes divide extents that are multiples of 32
    return !IsQuantized(weights) || (spec.hidden % 32 == 0 && spec.intermediate % 32 == 0);
  };
  const auto needs_no_gate = spec.activation != Activation::kSwigluOai || spec.gate != Gate::kNone;
  const bool has_zero = FormatOf(spec.weights).IsInteger() || spec.zero.empty();
  const bool down_has_zero = !IsQuantized(spec.down_type()) || FormatOf(spec.down_type()).IsInteger();
  const bool has_rows = std::any_of(spec.sizes.begin(), spec.sizes.end(), [](int64_t size) { return size > 0; });
  const int64_t local = spec.local_groups();
  return std::min({spec.tokens, spec.hidden, spec.intermediate, spec.offset, local, spec.behind}) >= 0 &&
         std::all_of(spec.sizes.begin(), spec.sizes.end(), [](int64_t size) { return size >= 0; }) &&
         (spec.tokens > 0 || !has_rows) && spec.offset + local <= spec.groups() && (spec.local || spec.offset == 0) &&
         fits(spec.weights) && fits(spec.down_type()) && needs_no_gate && has_zero &&
         (spec.zero.empty() || down_has_zero);
}

FuzzCase Shrink(FuzzCase failing, absl::FunctionRef<bool(const FuzzCase&)> fails, int64_t tries) {
  for (bool changed = true; changed;) {
    changed = false;
    for (FuzzCase& candidate : Candidates(failing)) {
      if (!IsConsistent(candidate)) continue;
      if (tries-- <= 0) return failing;
      if (!fails(candidate)) continue;
      failing = std::move(candidate);
      changed = true;
      break;
    }
  }
  return failing;
}

}  // namespace raggemm::test
