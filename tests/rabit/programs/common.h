// What the programs share: arguments, data, and where results go. Nothing but rabit is under them.
#pragma once

#include <rabit/rabit.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

namespace programs {

// The value of an argument key=value, or `by_default`.
inline std::string argument(int argc, char** argv, const std::string& key, const std::string& by_default) {
  for (int i = 1; i < argc; ++i) {
    if (std::strncmp(argv[i], (key + "=").c_str(), key.size() + 1) == 0) return argv[i] + key.size() + 1;
  }
  return by_default;
}
inline int number(int argc, char** argv, const std::string& key, int by_default) {
  return std::atoi(argument(argc, argv, key, std::to_string(by_default)).c_str());
}

// Writes this rank's result to the folder that out= names; a test compares the bytes.
template <typename T>
void write_result(int argc, char** argv, const std::vector<T>& values) {
  const std::string folder = argument(argc, argv, "out", "");
  if (folder.empty()) return;
  const std::string name = folder + "/" + std::to_string(rabit::GetRank());
  std::FILE* file = rabit::utils::FopenCheck(name.c_str(), "wb");
  rabit::utils::Check(std::fwrite(values.data(), sizeof(T), values.size(), file) == values.size(), "cannot write");
  std::fclose(file);
}

// Rows of numbers, divided by commas; the last one is the label. Each rank has its share of the rows.
struct Data {
  std::vector<std::vector<float> > rows;
  std::vector<int> labels;
};
inline Data load_share(const std::string& name) {
  std::ifstream file(name);
  rabit::utils::Check(file.good(), "cannot read %s", name.c_str());
  Data data;
  std::string line;
  for (int i = 0; std::getline(file, line); ++i) {
    if (i % rabit::GetWorldSize() != rabit::GetRank()) continue;
    std::vector<float> row;
    const char* at = line.c_str();
    while (*at != 0) {
      char* end = nullptr;
      row.push_back(std::strtof(at, &end));
      if (end == at) rabit::utils::Error("cannot read row %d", i);
      at = *end == ',' ? end + 1 : end;
    }
    data.labels.push_back(static_cast<int>(row.back()));
    row.pop_back();
    data.rows.push_back(row);
  }
  return data;
}

}  // namespace programs
