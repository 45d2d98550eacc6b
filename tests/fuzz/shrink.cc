#include "tests/fuzz/shrink.h"

#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace raggemm::test {
namespace {

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

std::vector<FuzzCase> Candidates(const FuzzCase& from) {
  std::vector<FuzzCase> candidates;
  AppendWithFewerGroups(from, candidates);
  AppendWithFewerSegments(from, candidates);
  AppendWithPlainerFields(from, candidates);
  return candidates;
}

}  // namespace

FuzzCase Shrink(FuzzCase failing, absl::FunctionRef<bool(const FuzzCase&)> fails, int64_t tries) {
  for (bool changed = true; changed;) {
    changed = false;
    for (FuzzCase& candidate : Candidates(failing)) {
      if (!IsConsistent(candidate.spec)) continue;
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
