// Compares one forward and backward pass of Tessera's GPT with the same network in plain LibTorch,
// in turns, on one thread.
//   step_bench [--dtype fp32|bf16] [--layers 6] [--hidden 512] [--heads 8] [--vocab 8192]
//              [--seq 256] [--batch 4] [--rounds 7] [--only own|plain]
#include <ATen/Parallel.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string>
#include <utility>
#include <vector>

#include "tessera/models/language_model.h"
#include "tests/models/plain_gpt.h"

namespace {

using namespace tessera;

struct Options {
  std::int64_t layers = 6, hidden = 512, heads = 8, vocab = 8192, seq = 256, batch = 4, rounds = 7;
  at::ScalarType type = at::kFloat;
  std::string only;
};

Options parse(int argc, char** argv) {
  Options o;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i], value = argv[i + 1];
    if (flag == "--dtype") o.type = value == "bf16" ? at::kBFloat16 : at::kFloat;
    if (flag == "--only") o.only = value;
    for (const auto& [name, place] : {std::pair<const char*, std::int64_t*>{"--layers", &o.layers},
                                      {"--hidden", &o.hidden},
                                      {"--heads", &o.heads},
                                      {"--vocab", &o.vocab},
                                      {"--seq", &o.seq},
                                      {"--batch", &o.batch},
                                      {"--rounds", &o.rounds}}) {
      if (flag == name) *place = std::atoll(value.c_str());
    }
  }
  return o;
}

// Milliseconds of processor time, which excludes other programs.
double now() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return 1e3 * static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_nsec);
}

struct Times {
  std::vector<double> forward, backward, step;
  double loss = 0;
};

template <typename Model>
void measure(Model& model, const at::Tensor& ids, const at::Tensor& targets, Times& times) {
  for (at::Tensor& p : model->parameters()) p.mutable_grad().reset();
  const double start = now();
  const at::Tensor loss = model->loss(ids, targets) / static_cast<double>(ids.numel());
  const double middle = now();
  loss.backward();
  const double end = now();
  times.forward.push_back(middle - start);
  times.backward.push_back(end - middle);
  times.step.push_back(end - start);
  times.loss = loss.template item<double>();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void print(const char* name, const Times& t) {
  std::printf("%-6s forward %8.1f ms  backward %8.1f ms  step %8.1f ms (min %8.1f)  loss %.5f\n",
              name, median(t.forward), median(t.backward), median(t.step),
              *std::min_element(t.step.begin(), t.step.end()), t.loss);
}

}  // namespace

int main(int argc, char** argv) {
  const Options o = parse(argc, argv);
  at::set_num_threads(1);
  const auto shape = gpt_shape(o.layers, o.hidden, o.heads, o.vocab, o.seq);
  const auto own = models::make_model(shape, {}, 1, at::TensorOptions(o.type));
  models::PlainGpt plain(shape, 1);
  plain->to(o.type);
  torch::manual_seed(1);
  const at::Tensor ids = torch::randint(o.vocab, {o.batch, o.seq}, at::kLong);
  const at::Tensor targets = torch::randint(o.vocab, {o.batch, o.seq}, at::kLong);
  Times mine, theirs;
  for (std::int64_t round = 0; round <= o.rounds; ++round) {
    if (round == 1) mine = theirs = {};  // the first round is a warm-up
    if (o.only != "plain") measure(own, ids, targets, mine);
    if (o.only != "own") measure(plain, ids, targets, theirs);
  }
  if (!mine.step.empty()) print("own", mine);
  if (!theirs.step.empty()) print("plain", theirs);
  if (!mine.step.empty() && !theirs.step.empty()) {
    std::printf("plain / own: %.3f by median, %.3f by minimum\n",
                median(theirs.step) / median(mine.step),
                *std::min_element(theirs.step.begin(), theirs.step.end()) /
                    *std::min_element(mine.step.begin(), mine.step.end()));
  }
}
