#include "proto/read_cases.h"

#include <cerrno>
#include <cstring>
#include <fstream>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "google/protobuf/io/tokenizer.h"
#include "google/protobuf/io/zero_copy_stream_impl.h"
#include "google/protobuf/text_format.h"

namespace raggemm {
namespace {

// The first error of the parser, with its line and column.
class FirstError : public google::protobuf::io::ErrorCollector {
 public:
  void AddError(int line, int column, const std::string& message) override {
    if (text_.empty()) text_ = absl::StrCat(line + 1, ":", column + 1, ": ", message);
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

}  // namespace

absl::StatusOr<proto::GroupedGemmCases> ReadCases(const std::string& path) {
  std::ifstream file(path);
  if (!file) return absl::NotFoundError(absl::StrCat("cannot read ", path, ": ", std::strerror(errno)));
  google::protobuf::io::IstreamInputStream input(&file);
  google::protobuf::TextFormat::Parser parser;
  FirstError error;
  parser.RecordErrorsTo(&error);
  proto::GroupedGemmCases cases;
  const bool parsed = parser.Parse(&input, &cases);
  if (file.bad()) return absl::NotFoundError(absl::StrCat("cannot read ", path));  // A directory, for example.
  if (!parsed) return absl::InvalidArgumentError(absl::StrCat(path, ":", error.text()));
  return cases;
}

}  // namespace raggemm
