#include "tests/host/command_line.h"

#include <cstdio>
#include <cstdlib>
#include <vector>

#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/flags/usage_config.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace raggemm::host {
namespace {

// What the process ends with where Abseil ends it: for help as for errors Abseil has 1.
enum class IfEnded { kAsIs, kHelp, kWrongUse } if_ended = IfEnded::kAsIs;

void Replace(int status, void*) {
  if (if_ended == IfEnded::kAsIs || status == EXIT_SUCCESS) return;
  std::fflush(nullptr);
  std::_Exit(if_ended == IfEnded::kHelp ? EXIT_SUCCESS : 2);
}

[[noreturn]] void WrongUse(absl::string_view program, absl::string_view what) {
  std::fputs(absl::StrCat(program, ": ", what, "; --help prints the flags\n").c_str(), stderr);
  std::exit(2);
}

absl::string_view NameOf(absl::string_view path) { return path.substr(path.rfind('/') + 1); }

}  // namespace

void ParseFlags(int argc, char** argv, const std::string& main_file, const std::string& about) {
  const absl::string_view program = NameOf(argv[0]);
  absl::FlagsUsageConfig usage;
  // A file is known by its name alone, for its path is one of the machine that built the program.
  usage.normalize_filename = [](absl::string_view path) { return std::string(NameOf(path)); };
  usage.contains_help_flags = usage.contains_helpshort_flags =
      [name = std::string(NameOf(main_file))](absl::string_view file) { return file == name; };
  usage.version_string = [=] { return absl::StrCat(program, " ", RAGGEMM_VERSION, "\n"); };
  absl::SetFlagsUsageConfig(usage);
  absl::SetProgramUsageMessage(about);

  static char long_help[] = "--help";
  std::vector<char*> arguments(argv, argv + argc);
  if_ended = IfEnded::kWrongUse;
  for (char*& argument : arguments) {
    absl::string_view text = argument;
    if (text == "-h") text = argument = long_help;
    if (absl::StartsWith(text, "--help") || absl::StartsWith(text, "-help")) if_ended = IfEnded::kHelp;
    if (text.empty() || text.find('=') == text.size() - 1) {
      WrongUse(program, absl::StrCat("\"", text, "\" has no value"));
    }
  }
  on_exit(Replace, nullptr);
  const std::vector<char*> rest = absl::ParseCommandLine(argc, arguments.data());
  if (rest.size() > 1) WrongUse(program, absl::StrCat("unexpected argument ", rest[1]));
  if_ended = IfEnded::kAsIs;
}

}  // namespace raggemm::host
