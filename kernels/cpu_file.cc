#include "kernels/cpu_file.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <system_error>
#include <type_traits>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace raggemm {
namespace {

constexpr double kKiB = 1 << 10, kGiB = 1 << 30;

absl::Status Wrong(int line, absl::string_view found, absl::string_view must) {
  return absl::FailedPreconditionError(
      absl::StrCat("line ", line, ": \"", absl::CHexEscape(found.substr(0, 80)), "\", must ", must));
}

bool IsWhole(const CpuNumber& number) { return !std::holds_alternative<double Cpu::*>(number.member); }

// All digits of bytes, six of the others.
std::string Text(const CpuNumber& number, double value) {
  return IsWhole(number) ? absl::StrCat(static_cast<int64_t>(value)) : absl::StrCat(value);
}

absl::Status ParseLine(int line, absl::string_view text, std::set<absl::string_view>& seen, Cpu& cpu) {
  const std::vector<absl::string_view> parts = absl::StrSplit(text, '=');
  const absl::string_view name = absl::StripAsciiWhitespace(parts[0]);
  const auto* number = std::find_if(CpuNumbers().begin(), CpuNumbers().end(),
                                    [&](const CpuNumber& known) { return known.name == name; });
  if (parts.size() != 2 || number == CpuNumbers().end()) {
    const auto append = [](std::string* out, const CpuNumber& known) { absl::StrAppend(out, known.name); };
    return Wrong(line, text, absl::StrCat("be NAME = VALUE of ", absl::StrJoin(CpuNumbers(), ", ", append)));
  }
  if (!seen.insert(name).second) return Wrong(line, text, "be the first of its name");
  double value;
  const bool is_number = absl::SimpleAtod(absl::StripAsciiWhitespace(parts[1]), &value);
  // By its sign too: threads that take denormals as zeros come here.
  if (!is_number || std::signbit(value) || !(number->least <= value && value <= number->most) ||
      (IsWhole(*number) && value != std::floor(value))) {
    return Wrong(line, text,
                 absl::StrCat(IsWhole(*number) ? "be whole and in [" : "be in [", Text(*number, number->least), ", ",
                              Text(*number, number->most), "]"));
  }
  std::visit(
      [&](auto member) {
        using Member = std::remove_reference_t<decltype(cpu.*member)>;
        cpu.*member = static_cast<Member>(value);
      },
      number->member);
  return absl::OkStatus();
}

}  // namespace

double CpuNumber::Of(const Cpu& cpu) const {
  return std::visit([&](auto of) { return static_cast<double>(cpu.*of); }, member);
}

absl::Span<const CpuNumber> CpuNumbers() {
  static const CpuNumber numbers[] = {
      {"fmas_per_cycle", &Cpu::fmas_per_cycle, 1, 1024},
      {"memory_bytes_per_cycle", &Cpu::memory_bytes_per_cycle, .01, 1024},
      {"l2_bytes_per_cycle", &Cpu::l2_bytes_per_cycle, .01, 1024},
      {"cycles_per_call", &Cpu::cycles_per_call, 0, 10000},
      {"l1_bytes", &Cpu::l1_bytes, kKiB, kGiB},
      {"l2_bytes", &Cpu::l2_bytes, kKiB, kGiB},
      {"block_bytes", &Cpu::block_bytes, kKiB, kGiB},
      {"streaming_stores_pay", &Cpu::streaming_stores_pay, 0, 1},
      {"fetch_strips_below", &Cpu::fetch_strips_below, 0, 1000},
  };
  return numbers;
}

std::string CpuFileText(const Cpu& cpu) {
  std::string text;
  for (const CpuNumber& number : CpuNumbers()) {
    absl::StrAppend(&text, number.name, " = ", Text(number, number.Of(cpu)), "\n");
  }
  return text;
}

absl::Status ParseCpuFile(absl::string_view text, Cpu& cpu) {
  Cpu parsed = cpu;
  parsed.name = "with the numbers of RAGGEMM_CPU_FILE";
  std::set<absl::string_view> seen;
  int line = 0;
  for (absl::string_view whole : absl::StrSplit(text, '\n')) {
    ++line;
    const absl::string_view part = absl::StripAsciiWhitespace(whole.substr(0, whole.find('#')));
    if (part.empty()) continue;
    if (absl::Status s = ParseLine(line, part, seen, parsed); !s.ok()) return s;
  }
  cpu = parsed;
  return absl::OkStatus();
}

absl::Status ReadCpuFile(const std::string& path, Cpu& cpu) {
  constexpr size_t kMost = 64 << 10;
  const auto failed = [&](absl::string_view why) {
    return absl::FailedPreconditionError(
        absl::StrCat("RAGGEMM_CPU_FILE: value \"", absl::CHexEscape(path.substr(0, 200)), "\": ", why));
  };
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return failed("is no file");
  std::string text(kMost + 1, '\0');
  std::ifstream file(path, std::ios::binary);
  if (!file) return failed("cannot be read");
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  if (text.size() > kMost) return failed("is larger than 64 KiB");
  if (file.bad() || !file.eof()) return failed("cannot be read");
  const absl::Status parsed = ParseCpuFile(text, cpu);
  return parsed.ok() ? parsed : failed(parsed.message());
}

}  // namespace raggemm
