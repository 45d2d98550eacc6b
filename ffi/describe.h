// Describes the library as JSON. handlers.h lists the fields, at raggemm_describe_json and raggemm_tables_json.
#ifndef RAGGEMM_FFI_DESCRIBE_H_
#define RAGGEMM_FFI_DESCRIBE_H_

#include <string>

namespace raggemm {

std::string Describe();
std::string DescribeTables();

}  // namespace raggemm

#endif  // RAGGEMM_FFI_DESCRIBE_H_
