#ifndef RAGGEMM_TESTS_HOST_COMMAND_LINE_H_
#define RAGGEMM_TESTS_HOST_COMMAND_LINE_H_

#include <string>

namespace raggemm::host {

// Takes the flags (ABSL_FLAG) of a program from its arguments. Ends the process with 0 after --help or -h, which print
// `about` and the flags of `main_file` (its __FILE__) to stdout, and after --version; and with 2 for an unknown flag, a
// wrong or empty value, and what is no flag, with what is wrong on stderr.
void ParseFlags(int argc, char** argv, const std::string& main_file, const std::string& about);

}  // namespace raggemm::host

#endif  // RAGGEMM_TESTS_HOST_COMMAND_LINE_H_
