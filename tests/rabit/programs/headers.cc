// What rabit.h brings in, alone and in C++11; and objects whose Save is not const.
#include <rabit/rabit.h>

namespace {

struct Words {
  std::set<std::string> words;
  template <typename TStream>
  void Save(TStream& to) {
    to.Write(std::vector<std::string>(words.begin(), words.end()));
  }
  template <typename TStream>
  void Load(TStream& from) {
    std::vector<std::string> all;
    rabit::utils::Check(from.Read(&all), "words are cut");
    words = std::set<std::string>(all.begin(), all.end());
  }
  void Reduce(const Words& other, size_t /*max_nbyte*/) { words.insert(other.words.begin(), other.words.end()); }
};

}  // namespace

int main(int argc, char* argv[]) {
  rabit::Init(argc, argv);
  std::map<int, std::list<int> > lists;
  std::deque<std::pair<int, int> > pairs(1, std::make_pair(1, 2));
  std::unordered_map<int, int> map;
  std::unordered_set<int> set;
  lists[pairs.front().first].push_back(map[0]);
  set.insert(pairs.front().second);
  Words words;
  words.words.insert(std::to_string(rabit::GetRank()));
  rabit::SerializeReducer<Words> reducer;
  reducer.Allreduce(&words, 1000, 1);
  rabit::utils::Check(words.words.size() == static_cast<size_t>(rabit::GetWorldSize()), "words are missing");
  rabit::utils::HandleLogInfo("%d words of %d processes\n", static_cast<int>(words.words.size()),
                              rabit::GetWorldSize());
  rabit::Finalize();
  return 0;
}
