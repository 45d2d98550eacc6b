// Describes the library as JSON. handlers.h lists the fields, at raggemm_describe_json and raggemm_tables_json.
#pragma once

#include <string>

namespace raggemm {

std::string Describe();
std::string DescribeTables();

}  // namespace raggemm
