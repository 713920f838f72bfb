// Takes settings from layers, row by row of the table, and keeps what is wrong with them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "recovery/base/result.h"
#include "worker/settings/layers.h"
#include "worker/settings/table.h"

namespace warren::worker {

class Resolver {
 public:
  // The layers in order of precedence. `local_world_size`: workers that share this machine.
  Resolver(std::vector<Layer> layers, Layer launcher, SystemFacts facts, std::uint64_t local_world_size);

  // Reads one setting into `s`, from the first layer that has it, else by default.
  void read(const Setting& setting, Settings& s);

  // The value of `name`, from the first layer that has it; null: nobody has given it.
  [[nodiscard]] const Raw* find(std::string_view name) const;
  // The layer of the launcher, whatever others say.
  [[nodiscard]] const Layer& launcher() const { return launcher_; }
  [[nodiscard]] const SystemFacts& facts() const { return facts_; }
  [[nodiscard]] std::uint64_t local_world_size() const { return local_world_size_; }

  // Notes how a setting came out, for people.
  void show(std::string_view name, const std::string& value, const Raw* raw);
  // Keeps a failure; all of them are told at once.
  void keep(const Status& status);
  void refuse(const std::string& why) { keep({Code::kInvalidArgument, why}); }
  [[nodiscard]] Status status() const;
  [[nodiscard]] std::vector<Resolved> resolved() && { return std::move(resolved_); }

 private:
  void read(const Setting& setting, const Number& number, const Raw* raw, Settings& s);
  void read(const Setting& setting, const Switch& on_off, const Raw* raw, Settings& s);
  void read(const Setting& setting, const Word& word, const Raw* raw, Settings& s);
  void read(const Setting& setting, const Text& text, const Raw* raw, Settings& s);

  std::vector<Layer> layers_;
  const Layer launcher_;
  const SystemFacts facts_;
  const std::uint64_t local_world_size_;
  std::vector<std::string> failures_;
  std::vector<Resolved> resolved_;
};

}  // namespace warren::worker
