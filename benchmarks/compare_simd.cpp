// Runs two builds of simd_cases.cpp in one process, in turns and on the same memory, so that other
// load affects both equally:  compare_simd OLD.so NEW.so [SAMPLES [PART OF A NAME]] Prints for each
// case the nanoseconds of both (min, median), the ratio of the old to the new time (above 1: the
// new build is faster), and whether the results are bitwise equal.
#include <dlfcn.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

struct Build {
  int (*count)();
  const char* (*name)(int);
  const char* (*best_set)();
  std::size_t (*prepare)(int, char*);
  void (*run)(int);
};

template <class F>
void find(void* library, const char* name, F& function) {
  function = reinterpret_cast<F>(dlsym(library, name));
  if (function == nullptr) {
    std::fprintf(stderr, "compare_simd: %s\n", dlerror());
    std::exit(1);
  }
}

Build open(const char* path) {
  void* const library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    std::fprintf(stderr, "compare_simd: %s\n", dlerror());
    std::exit(1);
  }
  Build build{};
  find(library, "case_count", build.count);
  find(library, "case_name", build.name);
  find(library, "best_set", build.best_set);
  find(library, "case_prepare", build.prepare);
  find(library, "case_run", build.run);
  return build;
}

double nanoseconds(const Build& build, int repetitions) {
  const auto start = std::chrono::steady_clock::now();
  build.run(repetitions);
  const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - start;
  return took.count() / repetitions;
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

int main(int count, char** words) {
  if (count < 3) {
    std::fprintf(stderr, "usage: compare_simd OLD.so NEW.so [SAMPLES [PART OF A NAME]]\n");
    return 2;
  }
  const Build builds[2] = {open(words[1]), open(words[2])};
  const int samples = count > 3 ? std::atoi(words[3]) : 30;
  const char* const part = count > 4 ? words[4] : "";
  constexpr std::size_t bytes = std::size_t{256} << 20;
  auto* const memory = static_cast<char*>(mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0));
  if (memory == MAP_FAILED) return 1;
  std::printf("best set: %s, %s\n%-36s %11s %11s %11s %11s %7s %7s bits\n", builds[0].best_set(),
              builds[1].best_set(), "case", "old min", "new min", "old median", "new median", "min",
              "median");
  double logs = 0;
  int shown = 0, slower = 0;
  for (int i = 0; i < builds[0].count(); ++i) {
    const std::string name = builds[0].name(i);
    if (name.find(part) == std::string::npos) continue;
    int other = 0;
    while (other < builds[1].count() && builds[1].name(other) != name) ++other;
    if (other == builds[1].count()) continue;
    const int index[2] = {i, other};
    std::vector<double> times[2];
    std::vector<char> result;
    bool same = true;
    int repetitions = 1;
    for (int s = -1; s < samples; ++s) {
      for (int turn = 0; turn < 2; ++turn) {
        const int b = (s + turn) & 1;
        const std::size_t used = builds[b].prepare(index[b], memory);
        builds[b].run(1);
        if (s < 0 && turn == 0) result.assign(memory, memory + used);
        if (s < 0 && turn == 1) same = std::equal(result.begin(), result.end(), memory);
        const double took = nanoseconds(builds[b], repetitions);
        if (s >= 0) times[b].push_back(took);
        if (s < 0) repetitions = std::clamp(static_cast<int>(0.5e6 / took), 1, 10000);
      }
    }
    const double least[2] = {*std::min_element(times[0].begin(), times[0].end()),
                             *std::min_element(times[1].begin(), times[1].end())};
    const double middle[2] = {median(times[0]), median(times[1])};
    std::printf("%-36s %11.0f %11.0f %11.0f %11.0f %7.3f %7.3f %-5s%s\n", name.c_str(), least[0],
                least[1], middle[0], middle[1], least[0] / least[1], middle[0] / middle[1],
                same ? "same" : "other", least[0] / least[1] < 0.97 ? " <" : "");
    logs += std::log(least[0] / least[1]);
    slower += least[0] / least[1] < 0.97 ? 1 : 0;
    ++shown;
  }
  std::printf("%d cases, geometric mean of the min %.3f, below 0.97: %d\n", shown,
              std::exp(logs / std::max(shown, 1)), slower);
}
