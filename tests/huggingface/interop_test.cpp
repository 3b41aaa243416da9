// Models of transformers, loaded on several meshes: equal logits and losses, and export back.

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <torch/torch.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iostream>
#include <sstream>

#include "tessera/comm/threads.h"
#include "tessera/core/text.h"
#include "tessera/huggingface/export.h"
#include "tessera/huggingface/shape_json.h"
#include "tessera/models/init.h"
#include "tessera/models/language_model.h"
#include "tessera/parallel/parallelize.h"
#include "tessera/parallel/save.h"
#include "tessera/train/init_from.h"
#include "tests/interop.h"
#include "tests/processes.h"
#include "tests/temporary_folder.h"
#include "tests/text.h"

namespace tessera {
namespace {

// Process of peer.py, which makes the models and checks the exports.
class Peer {
 public:
  explicit Peer(const std::string& folder) {
    int to[2], from[2];
    if (::pipe(to) != 0 || ::pipe(from) != 0) throw std::runtime_error("pipe");
    pid_ = ::fork();
    if (pid_ == 0) {
      ::dup2(to[0], 0);
      ::dup2(from[1], 1);
      for (const int fd : {to[0], to[1], from[0], from[1]}) ::close(fd);
      ::execl(kInteropPython, kInteropPython, TESSERA_PEER_SCRIPT, folder.c_str(), nullptr);
      ::_exit(127);
    }
    ::close(to[0]);
    ::close(from[1]);
    to_ = ::fdopen(to[1], "w");
    from_ = ::fdopen(from[0], "r");
  }
  ~Peer() {
    std::fclose(to_);
    std::fclose(from_);
    ::waitpid(pid_, nullptr, 0);
  }
  void send(const std::string& line) {
    std::fputs((line + "\n").c_str(), to_);
    std::fflush(to_);
  }
  // Returns the next line; "" if the process has exited.
  std::string receive() {
    std::string line;
    for (int c = 0; (c = std::fgetc(from_)) != EOF && c != '\n';) line += static_cast<char>(c);
    return line;
  }

 private:
  pid_t pid_ = -1;
  std::FILE *to_ = nullptr, *from_ = nullptr;
};

// A tensor that Python saved.
at::Tensor read_tensor(const std::string& path, const std::string& name) {
  const auto file = checkpoint::local_files()->open(path);
  const checkpoint::Header header = checkpoint::read_header(*file, path);
  const checkpoint::TensorEntry* const entry = header.find(name);
  if (entry == nullptr) throw std::runtime_error(name);
  const at::Tensor out =
      torch::empty(entry->shape, entry->dtype == DType::i64 ? torch::kLong : torch::kFloat);
  file->read(header.data_begin + entry->begin, static_cast<std::byte*>(out.data_ptr()),
             entry->bytes());
  return out;
}

struct Reference {
  at::Tensor ids, logits, batches, losses;
};

struct InteropMesh {
  const char* mesh;
  int stage;
  std::int64_t pad_to;
  std::string layout = "fp32";
};

struct RunResult {
  at::Tensor logits;
  std::vector<double> losses;
};

// Loads the folder on a mesh, computes logits, saves it in `save_in` if given, and trains it.
RunResult run_on(const InteropMesh& run, const std::string& folder, const Reference& reference,
                 const std::string& save_in = "") {
  train::RunConfig config;
  config.init_from = folder;
  const ModelShape shape = train::initial_shape(folder);
  RunResult result;
  comm::run_threads(
      static_cast<int>(Axes(run.mesh).world()), [&](std::shared_ptr<comm::Backend> backend) {
        const comm::Mesh mesh(comm::Group(std::move(backend)), Axes(run.mesh));
        ParallelOptions options;
        options.stored = train::stored_start(config);
        options.initial = models::initial_values(shape);
        options.engine.stage = run.stage;
        options.engine.layout = parse_state_layout(run.layout);
        options.engine.optimizer =
            zero::AdamW{.lr = 1e-2, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .weight_decay = 0.1};
        options.engine.clip_norm = 1;
        ParallelModel model(
            models::layers_of(shape, nn::ParamOptions::unallocated(at::device(at::kCPU)),
                              run.pad_to),
            mesh, std::move(options));
        const at::Tensor logits =
            model.predict(reference.ids, [](torch::nn::Module& last, const at::Tensor& x) {
              return dynamic_cast<models::HeadImpl&>(last).logits(x);
            });
        if (mesh.world().rank() == 0) result.logits = logits.to(at::kFloat);
        if (!save_in.empty()) {
          RunFacts facts;
          facts.model = huggingface::shape_json(shape);
          save(model, save_in, {}, {}, facts);
        }
        for (std::int64_t step = 0; step < reference.batches.size(0); ++step) {
          const at::Tensor all = reference.batches.select(0, step);
          const std::int64_t rows = all.size(0) / mesh.axes().dp();
          const at::Tensor own = all.narrow(0, mesh.dp().rank() * rows, rows);
          const std::int64_t tokens = own.size(1) - 1;
          ParallelModel::StepNumbers numbers;
          numbers.tokens = static_cast<double>(rows * tokens);
          const auto info = model
                                .start_step({{own.narrow(1, 0, tokens).contiguous(),
                                              own.narrow(1, 1, tokens).contiguous()}},
                                            numbers)
                                .get();
          if (mesh.world().rank() == 0) result.losses.push_back(info.loss);
        }
      });
  return result;
}

// Runs `tessera train` with learning rate 0 and exports the result, which must equal the input.
void train_and_export(const std::string& folder, const std::string& to) {
  const std::string run = to + "-run";
  const std::string ep = train::initial_shape(folder).experts.any() ? "2" : "1";
  Capture out, err;
  const int trained =
      execute({TESSERA_PROGRAM, "train", "--init-from", folder, "--dp",  "2",  "--zero",        "3",
               "--steps",       "2",     "--lr",        "0",    "--seq", "16", "--micro-batch", "1",
               "--samples",     "0",     "--save",      run,    "--ep",  ep},
              out, err);
  ASSERT_EQ(trained, 0) << out.text() << err.text();
  const int exported = execute(
      {TESSERA_PROGRAM, "checkpoint", "export", run, to, "--format", "huggingface"}, out, err);
  ASSERT_EQ(exported, 0) << out.text() << err.text();
}

double largest_difference(const at::Tensor& a, const at::Tensor& b) {
  return (a - b).abs().max().item<double>();
}

TEST(Interop, MatchesLogitsLossesAndExportsOfEveryFamily) {
  TESSERA_NEEDS_INTEROP();
  const TemporaryFolder made;
  const std::string& dir = made.path;
  {
    Peer peer(dir);
    std::istringstream names(peer.receive());
    std::string name;
    names >> name;
    ASSERT_EQ(name, "made");
    int models = 0;
    while (names >> name) {
      SCOPED_TRACE(name);
      ++models;
      const std::string folder = dir + "/" + name, path = folder + "/reference.safetensors";
      const Reference reference = {read_tensor(path, "ids"), read_tensor(path, "logits"),
                                   read_tensor(path, "batches"), read_tensor(path, "losses")};
      // The logits are not trivial.
      ASSERT_GT(reference.logits.std().item<double>(), 0.3);
      std::vector<InteropMesh> meshes = {
          {"dp=1", 0, 1}, {"tp=2", 1, 8}, {"pp=2", 2, 1}, {"dp=2", 3, 1}, {"dp=2,tp=2", 3, 1}};
      const bool sparse = train::initial_shape(folder).experts.any();
      if (sparse) {
        meshes.insert(meshes.end(),
                      {{"dp=2,ep=2", 2, 1}, {"dp=2,pp=2,ep=2", 1, 1}, {"dp=2,tp=2,ep=2", 3, 1}});
      }
      double logits = 0, losses = 0;  // largest differences
      for (const InteropMesh& run : meshes) {
        SCOPED_TRACE(str(run.mesh, ", stage ", run.stage));
        const bool saves = std::string(run.mesh) == (sparse ? "dp=2,tp=2,ep=2" : "dp=2,tp=2");
        const RunResult got = run_on(run, folder, reference, saves ? folder + "-run" : "");
        logits = std::max(logits, largest_difference(got.logits, reference.logits));
        ASSERT_EQ(got.losses.size(), 3u);
        for (std::int64_t i = 0; i < 3; ++i) {
          const double wanted = reference.losses[i].item<double>();
          losses = std::max(losses, std::abs(got.losses[static_cast<std::size_t>(i)] - wanted));
        }
        EXPECT_LT(logits, sparse ? 1e-5 : 1e-4);
        EXPECT_LT(losses, sparse ? 1e-5 : 1e-3);
        EXPECT_GT(std::abs(got.losses[2] - got.losses[0]), 2e-3);  // training changed the loss
      }
      std::cout << name << ": logits within " << logits << ", losses of three steps within "
                << losses << "\n";
      // The checkpoint saved on the last mesh before training, exported as a folder.
      checkpoint::Checkpoint from(checkpoint::find_latest(folder + "-run").folder);
      huggingface::FolderOptions options;
      options.shard_bytes = 30'000;
      // With a generated config.json, and with the original one.
      huggingface::export_folder(from, folder + "-bare", options);
      peer.send(str("bare ", name, " ", folder, "-bare"));
      EXPECT_EQ(peer.receive(), "equal");
      huggingface::keep_companions(folder, folder + "-run");
      huggingface::export_folder(from, folder + "-out", options);
      peer.send(str("check ", name, " ", folder, "-out"));
      EXPECT_EQ(peer.receive(), "equal");
      // A run that starts from that checkpoint has the same logits.
      const RunResult again = run_on({"pp=2", 1, 4}, folder + "-run", reference);
      EXPECT_LT(largest_difference(again.logits, reference.logits), 1e-4);
    }
    EXPECT_GE(models, 16);
    for (const char* const each : {"gpt2", "qwen2", "mixtral", "dots1"}) {
      train_and_export(str(dir, "/", each), str(dir, "/by-program-", each));
      peer.send(str("check ", each, " ", dir, "/by-program-", each));
      EXPECT_EQ(peer.receive(), "equal");
    }
  }
}

}  // namespace
}  // namespace tessera
