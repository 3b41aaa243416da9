// Several engines in one program, and several threads using one engine.

#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <string>
#include <thread>

#include "tests/text.h"
#include "tests/zero/oracle.h"

namespace tessera::zero::test {
namespace {

std::shared_ptr<Mlp> made() {
  auto net = std::make_shared<Mlp>();
  net->initialize(7);
  return net;
}

Options of_stage(int stage) {
  Options options;
  options.stage = stage;
  options.optimizer = SGD{.lr = 0.1};
  return options;
}

// A generator and a discriminator, each with an engine: the one that does not train is frozen for
// the duration.
struct Gan {
  torch::nn::Sequential generator{torch::nn::Linear(2, 4), torch::nn::Tanh(),
                                  torch::nn::Linear(4, 3)};
  torch::nn::Sequential critic{torch::nn::Linear(3, 4), torch::nn::Tanh(), torch::nn::Linear(4, 1)};
  Gan() {
    const at::NoGradGuard no_grad;
    std::uint64_t seed = 3;
    for (const auto& net : {generator, critic}) {
      for (const at::Tensor& p : net->parameters()) p.copy_(numbers(p.sizes(), ++seed));
    }
  }
  static at::Tensor noise(int step) { return numbers({4, 2}, 60 + static_cast<unsigned>(step)); }
  static at::Tensor real(int step) { return numbers({4, 3}, 80 + static_cast<unsigned>(step)); }
  void train_critic(bool trains) {
    for (at::Tensor& p : critic->parameters()) p.requires_grad_(trains);
  }
};

TEST(Engines, TwoEnginesTrainAGan) {
  Gan alone;
  torch::optim::SGD of_generator(alone.generator->parameters(), torch::optim::SGDOptions(0.1));
  torch::optim::SGD of_critic(alone.critic->parameters(), torch::optim::SGDOptions(0.1));
  for (int step = 0; step < 4; ++step) {
    of_critic.zero_grad();
    const at::Tensor fake = alone.generator->forward(Gan::noise(step));
    (alone.critic->forward(fake.detach()).mean() - alone.critic->forward(Gan::real(step)).mean())
        .backward();
    of_critic.step();
    of_generator.zero_grad();
    (-alone.critic->forward(alone.generator->forward(Gan::noise(step))).mean()).backward();
    of_generator.step();
  }
  for (int stage = 0; stage < 4; ++stage) {
    over(2, [&](const comm::Group& group) {
      Gan gan;
      DataParallel generator(gan.generator, group, of_stage(stage));
      DataParallel critic(gan.critic, group, of_stage(stage));
      if (stage >= 2) nn::set_recompute(*gan.critic, nn::Recompute::full);
      for (int step = 0; step < 4; ++step) {
        gan.train_critic(true);
        critic.backward(critic(generator(Gan::noise(step)).detach()).mean() -
                        critic(Gan::real(step)).mean());
        critic.step();
        gan.train_critic(false);
        generator.backward(-critic(generator(Gan::noise(step))).mean());
        generator.step();
      }
      const auto near = [](const auto& got, const torch::nn::Sequential& want) {
        for (std::size_t i = 0; i < got.size(); ++i) {
          EXPECT_TRUE(at::allclose(got[i].second, want->parameters()[i], 1e-5, 1e-6))
              << got[i].first;
        }
      };
      near(generator.full_parameters(), alone.generator);
      near(critic.full_parameters(), alone.critic);
    });
  }
}

TEST(Engines, BackwardIntoTheModelOfAnotherEngineNamesBothModels) {
  for (const int stage : {0, 3}) {
    over(2, [&](const comm::Group& group) {
      Gan gan;
      DataParallel generator(gan.generator, group, of_stage(0));
      DataParallel critic(gan.critic, group, of_stage(stage));
      const auto loss = [&] { return critic(generator(Gan::noise(1))).mean(); };
      const std::string error = error_of([&] { generator.backward(loss()); });
      EXPECT_TRUE(contains(error,
                           "backward() of the engine of model \"torch::nn::SequentialImpl\" "
                           "reached "))
          << error;
      EXPECT_TRUE(contains(error, "which has an engine of its own")) << error;
      EXPECT_TRUE(contains(error, "requires_grad_(false)")) << error;
      generator.discard();
      critic.discard();
      critic.backward(critic(generator(Gan::noise(1)).detach()).mean());
      critic.step();
      const std::string plain = error_of([&] { critic(Gan::real(1)).mean().backward(); });
      EXPECT_TRUE(contains(plain, "loss.backward() was called, and reached ")) << plain;
      EXPECT_TRUE(contains(plain, "train.backward(loss)")) << plain;
    });
  }
}

TEST(Engines, RejectsConcurrentBackwardAndStep) {
  auto net = made();
  Engine engine(net, comm::Group(), of_stage(0));
  const at::Tensor one = forward_loss(engine, *net, net->batch(1));
  const at::Tensor two = forward_loss(engine, *net, net->batch(2));
  constexpr std::chrono::seconds kDeadline(60);
  std::promise<void> inside, finished;
  std::future<void> other_is_finished = finished.get_future();
  net->layers->parameters()[0].register_hook([&](const at::Tensor&) {
    inside.set_value();
    other_is_finished.wait_for(kDeadline);
  });
  std::thread first([&] { engine.backward(one); });
  ASSERT_EQ(inside.get_future().wait_for(kDeadline), std::future_status::ready);
  const std::string backward = error_of([&] { engine.backward(two); });
  const std::string step = error_of([&] { engine.step(); });
  finished.set_value();
  first.join();
  EXPECT_TRUE(contains(backward, "backward(): another thread is in backward() or step()"))
      << backward;
  EXPECT_TRUE(contains(step, "step(): another thread is in backward() or step()")) << step;
  EXPECT_GT(engine.step().grad_norm, 0);
}

TEST(Engines, RejectsBackwardInsideBackward) {
  auto net = made();
  Engine engine(net, comm::Group(), of_stage(0));
  const at::Tensor one = forward_loss(engine, *net, net->batch(1));
  const at::Tensor two = forward_loss(engine, *net, net->batch(2));
  net->layers->parameters()[0].register_hook([&](const at::Tensor&) { engine.backward(two); });
  const std::string error = error_of([&] { engine.backward(one); });
  EXPECT_TRUE(contains(error, "inside a backward pass of the same engine")) << error;
}

}  // namespace
}  // namespace tessera::zero::test
