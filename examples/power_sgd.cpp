// PowerSGD (Vogels et al. 2019, https://arxiv.org/abs/1905.13727) as a reduce hook: the gradient of
// a matrix is sent in low rank, and the error is added to the next gradient.
//   build/bin/tessera run -n 2 -- build/bin/power_sgd
// Trains a net with plain all-reduce and with PowerSGD, prints the losses and the bytes sent, and
// checks that no part of a gradient is lost.
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "tessera/tessera.h"

namespace {

using tessera::GradBucket;
using tessera::Group;
using tessera::PendingSums;

// Makes the columns of x orthonormal, in order and in fp64. A column that depends linearly on the
// columns before it becomes random if there is a seed, otherwise zero. Equal inputs give equal bits
// on every rank. Does not change x if a value is not finite, so that the step fails.
void orthonormalize(const at::Tensor& x, std::optional<std::uint64_t> seed = std::nullopt) {
  const at::Tensor columns = x.t().to(at::kCPU, at::kDouble).contiguous();
  if (!columns.isfinite().all().item<bool>()) return;
  const auto count = columns.size(0), rows = columns.size(1);
  auto* const values = columns.data_ptr<double>();
  const auto dot = [&](const double* a, const double* b) {
    double sum = 0;
    for (std::int64_t i = 0; i < rows; ++i) sum += a[i] * b[i];
    return sum;
  };
  std::mt19937_64 random(seed.value_or(0));
  std::normal_distribution<double> normal;
  for (std::int64_t c = 0; c < count; ++c) {
    double* const column = values + c * rows;
    double scale = 0;
    for (int attempt = 0; attempt < 3 && scale == 0; ++attempt) {
      if (attempt > 0 && !seed) break;
      if (attempt > 0) std::generate_n(column, rows, [&] { return normal(random); });
      const double before = std::sqrt(dot(column, column));
      for (int round = 0; round < 2; ++round) {  // the second removes what rounding left
        for (std::int64_t other = 0; other < c; ++other) {
          const double along = dot(column, values + other * rows);
          for (std::int64_t i = 0; i < rows; ++i) column[i] -= along * values[other * rows + i];
        }
      }
      const double left = std::sqrt(dot(column, column));
      if (left > 1e-6 * before) scale = 1 / left;
    }
    for (std::int64_t i = 0; i < rows; ++i) column[i] *= scale;
  }
  x.copy_(columns.t());
}

// For each matrix M = gradient + error of this rank, two thin factors are sent instead of M:
//   P = orthonormal(Σ M·Q),   Q' = Σ Mᵀ·P,   result P·Q'ᵀ,   error = M − P·(Mᵀ·P)ᵀ of this rank.
// The next step uses Q' as Q. P, Q' and the result have the same bits on every rank, if all ranks
// run on the same kind of hardware. The sum of all results and of the current errors of all ranks
// equals the sum of all gradients. Other gradients are sent together with P.
//
// Checkpoints do not contain the errors, so a resumed run starts with zeros. A program that wants
// them saves errors(), which differ between ranks, in a file of its own on every rank.
class PowerSgd {
 public:
  struct Settings {
    int rank = 4;             // columns of P and Q
    int warm_up_steps = 10;   // first steps; they send whole gradients
    double least_saving = 2;  // matrices that would shrink by less are sent whole
  };
  explicit PowerSgd(const Settings& settings) : settings_(settings) {}

  // The reduce hook.
  PendingSums start(const GradBucket& given, const Group& data) {
    Bucket& bucket = bucket_of(given);
    const bool warm_up = steps_ < settings_.warm_up_steps;
    if (given.last) ++steps_;
    if (warm_up || bucket.matrices.empty()) {
      return data.all_reduce(given.grads, {.label = given.label});
    }
    for (Matrix& m : bucket.matrices) {
      m.error.add_(m.grad);
      orthonormalize(m.q, m.seed);
      at::mm_out(m.p, m.error, m.q);
    }
    for (Whole& whole : bucket.whole) whole.sent.copy_(whole.grad);
    bucket.label = given.label;
    bucket.work = data.all_reduce(bucket.first, {.label = given.label + " (P)"});
    bucket.sends_first = true;
    return [this, &bucket, data] { finish(bucket, data); };
  }

  // Errors of this rank, by parameter.
  std::map<std::string, at::Tensor> errors() const {
    std::map<std::string, at::Tensor> all;
    for (const auto& [index, bucket] : buckets_) {
      for (const Matrix& m : bucket.matrices) all[m.name] = m.error;
    }
    return all;
  }

  // Sets errors and factors to zero. Call it on all ranks after discard() and after a step that was
  // skipped because it was not finite: its values are in the errors.
  void reset() {
    for (auto& [index, bucket] : buckets_) {
      for (Matrix& m : bucket.matrices) {
        m.error.zero_();
        m.q.zero_();
      }
    }
  }

 private:
  struct Matrix {
    std::string name;
    at::Tensor grad, error;  // m × n
    at::Tensor p, q;         // m × r, n × r
    std::uint64_t seed = 0;
  };
  struct Whole {  // gradient that is not compressed, and its place in `first`
    at::Tensor grad, sent;
  };
  struct Bucket {
    std::vector<Matrix> matrices;
    std::vector<Whole> whole;
    at::Tensor first, second;  // all P and whole gradients; all Q
    std::string label;
    tessera::comm::Work work;
    bool sends_first = false;
  };

  Bucket& bucket_of(const GradBucket& given) {
    const auto [at, fresh] = buckets_.try_emplace(given.index);
    Bucket& bucket = at->second;
    if (!fresh) return bucket;
    struct Place {
      std::int64_t rank = 0, first = 0, second = 0;
    };
    std::vector<Place> places;
    std::int64_t first = 0, second = 0;
    for (const auto& [name, grad] : given.params) {
      Place place{0, first, second};
      if (grad.dim() >= 2 && grad.is_contiguous() && grad.numel() > 0) {
        const std::int64_t m = grad.size(0), n = grad.numel() / m;
        const std::int64_t rank = std::min({std::int64_t{settings_.rank}, m, n});
        const auto low = static_cast<double>(rank * (m + n));
        if (low * settings_.least_saving <= static_cast<double>(m * n)) place.rank = rank;
        second += n * place.rank;
        first += m * place.rank;
      }
      if (place.rank == 0) first += grad.numel();
      places.push_back(place);
    }
    bucket.first = at::zeros({first}, given.grads.options());
    bucket.second = at::zeros({second}, given.grads.options());
    for (std::size_t i = 0; i < places.size(); ++i) {
      const auto& [name, grad] = given.params[i];
      const auto& [rank, at_first, at_second] = places[i];
      if (rank == 0) {
        const at::Tensor sent = bucket.first.narrow(0, at_first, grad.numel());
        bucket.whole.push_back({grad, sent.view(grad.sizes())});
        continue;
      }
      const at::Tensor m = grad.view({grad.size(0), -1});
      bucket.matrices.push_back(
          {name, m, at::zeros_like(m),
           bucket.first.narrow(0, at_first, m.size(0) * rank).view({m.size(0), rank}),
           bucket.second.narrow(0, at_second, m.size(1) * rank).view({m.size(1), rank}),
           ++matrices_});
    }
    return bucket;
  }

  // Completes the reduction of a bucket. The first call in a step sends the Q of all buckets, so
  // that these collectives overlap.
  void finish(Bucket& bucket, const Group& data) {
    for (auto& [index, each] : buckets_) {
      if (each.sends_first) start_second(each, data);
    }
    bucket.work.wait();
    for (Matrix& m : bucket.matrices) at::mm_out(m.grad, m.p, m.q.t());
    for (Whole& whole : bucket.whole) whole.grad.copy_(whole.sent);
  }

  void start_second(Bucket& bucket, const Group& data) {
    bucket.work.wait();
    bucket.sends_first = false;
    for (Matrix& m : bucket.matrices) {
      orthonormalize(m.p);
      at::mm_out(m.q, m.error.t(), m.p);
      m.error.addmm_(m.p, m.q.t(), 1, -1);
    }
    bucket.work = data.all_reduce(bucket.second, {.label = bucket.label + " (Q)"});
  }

  const Settings settings_;
  std::map<int, Bucket> buckets_;
  int steps_ = 0;
  std::uint64_t matrices_ = 0;
};

torch::nn::Sequential make_net(std::uint64_t seed) {
  using namespace torch::nn;
  torch::manual_seed(seed);
  return Sequential(Linear(64, 256), Tanh(), Linear(256, 256), Tanh(), Linear(256, 16));
}

struct Run {
  std::vector<double> losses;
  double sent = 0;  // bytes of a step, mean
  std::uint64_t hash = 0;
};

// Trains a net to imitate another one. `hook` may be null.
Run train(const Group& world, const tessera::ReduceHook& hook, int steps) {
  auto teacher = make_net(1);
  tessera::DataParallel train(
      make_net(2), world,
      {.optimizer = tessera::AdamW{.lr = 2e-3}, .bucket_bytes = 200'000, .reduce_hook = hook});
  Run run;
  const auto before = world.traffic().sent_bytes;
  for (int step = 0; step < steps; ++step) {
    torch::manual_seed(1000 * (step + 1) + world.rank());
    const at::Tensor x = torch::randn({32, 64});
    train.backward(torch::mse_loss(train(x), teacher->forward(x).detach()));
    run.losses.push_back(train.step().loss);
  }
  run.sent = static_cast<double>(world.traffic().sent_bytes - before) / steps;
  run.hash = train.params_hash();
  return run;
}

// Compares the sums of PowerSGD with exact sums over some steps, and prints the difference with and
// without the errors that are still to be sent, relative to the exact sum.
void check_error_feedback(const Group& world) {
  PowerSgd low_rank({.warm_up_steps = 0});
  std::map<std::string, at::Tensor> exact, missing;
  train(
      world,
      [&](const GradBucket& bucket, const Group& data) -> PendingSums {
        std::map<std::string, at::Tensor> sums;
        for (const auto& [name, grad] : bucket.params) {
          sums[name] = grad.clone();
          data.all_reduce(sums[name], {.label = name}).wait();
        }
        const PendingSums reduction = low_rank.start(bucket, data);
        if (const auto* work = std::get_if<tessera::comm::Work>(&reduction)) {
          work->wait();
        } else {
          std::get<std::function<void()>>(reduction)();
        }
        for (const auto& [name, grad] : bucket.params) {
          exact[name] = exact.contains(name) ? exact[name] + sums[name] : sums[name];
          const at::Tensor difference = sums[name] - grad;
          missing[name] = missing.contains(name) ? missing[name] + difference : difference;
        }
        return {};  // complete
      },
      20);
  double without = 0, with = 0;
  for (const auto& [name, error] : low_rank.errors()) {
    const at::Tensor errors = error.clone();
    world.all_reduce(errors, {.label = name}).wait();
    const double size = exact[name].norm().item<double>();
    without = std::max(without, missing[name].norm().item<double>() / size);
    with = std::max(with,
                    (missing[name] - errors.view_as(missing[name])).norm().item<double>() / size);
  }
  if (world.rank() == 0) {
    std::printf("missing after 20 steps: %.2g of the sums, %.2g with error feedback\n", without,
                with);
  }
}

}  // namespace

int main() try {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // line-buffered, also in pipes
  const Group world = tessera::init();
  constexpr int kSteps = 200;
  const Run plain = train(world, nullptr, kSteps);
  const auto low_rank = std::make_shared<PowerSgd>(PowerSgd::Settings{});
  const Run compressed = train(
      world,
      [low_rank](const GradBucket& bucket, const Group& data) {
        return low_rank->start(bucket, data);
      },
      kSteps);
  for (int step = 50; step <= kSteps && world.rank() == 0; step += 50) {
    const auto i = static_cast<std::size_t>(step - 1);
    std::printf("step %d  all-reduce %.9g  PowerSGD %.9g\n", step, plain.losses[i],
                compressed.losses[i]);
  }
  if (world.rank() == 0) {
    std::printf("bytes sent per step: all-reduce %.0f, PowerSGD %.0f\n", plain.sent,
                compressed.sent);
    std::printf("parameters %016llx\n", static_cast<unsigned long long>(compressed.hash));
  }
  check_error_feedback(world);
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
