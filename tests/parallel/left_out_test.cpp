// Error feedback of PowerSGD in checkpoints: restored bit by bit on the same ranks, as a sum on
// others.

#include "tessera/parallel/left_out.h"

#include "tests/parallel/save_nets.h"
#include "tests/text.h"

namespace tessera::save_test {
namespace {

zero::Options low_rank(int rank = 1, std::int64_t warm_up = 1) {
  zero::Options options = options_of({"SGD", zero::SGD{.lr = 0.05, .momentum = 0.9}}, 0);
  options.grad_compression = GradCompression::powersgd;
  options.power_sgd = {.rank = rank, .warm_up_steps = warm_up, .least_saving = 0};
  return options;
}

struct Ranks {
  Contents contents;             // at the end, of rank 0
  std::vector<Contents> errors;  // of each rank, after loading, or at the end if none was loaded
  std::vector<Contents> next;
  std::vector<std::string> notes;
};

Ranks run(int ranks, const zero::Options& options, int to, const std::string& from = "",
          const std::string& into = "", bool channels_last = false) {
  Ranks all;
  all.errors.resize(static_cast<std::size_t>(ranks));
  all.next.resize(static_cast<std::size_t>(ranks));
  const auto errors = on_ranks(ranks, [&](const comm::Group& group) {
    Training training(Net(5, channels_last), group, options);
    const auto look = [&] {
      const auto me = static_cast<std::size_t>(group.rank());
      for (const zero::LeftOut& kept : training.left_out(zero::StateScope::held)) {
        all.errors[me][kept.param] = kept.error.as_strided(kept.sizes, kept.strides).clone();
        all.next[me][kept.param] = kept.next.clone();
      }
    };
    int done = 0;
    if (!from.empty()) {
      const Loaded loaded = load(training, from);
      done = static_cast<int>(loaded.step);
      if (group.rank() == 0) all.notes = loaded.notes;
      look();
    }
    train(training, done, to);
    if (from.empty()) look();
    if (!into.empty()) save(training, into);
    const Contents mine = contents(training);
    if (group.rank() == 0) all.contents = mine;
  });
  expect_no_errors(errors, str(ranks, " ranks to step ", to));
  return all;
}

Contents sum_of(const std::vector<Contents>& ranks) {
  Contents sum;
  for (const Contents& rank : ranks) {
    for (const auto& [name, values] : rank) {
      sum[name] = sum.contains(name) ? sum[name] + values.to(at::kDouble) : values.to(at::kDouble);
    }
  }
  return sum;
}

TEST(LeftOut, ResumedRunHasTheBitsOfAnUninterruptedOne) {
  for (const int ranks : {2, 3}) {
    for (const int rank : {1, 2}) {
      for (const bool channels_last : {false, true}) {
        const std::string where =
            str(ranks, " ranks, rank ", rank, channels_last ? ", turned" : "");
        const Folder folder;
        const Ranks whole = run(ranks, low_rank(rank), 6, "", "", channels_last);
        const Ranks saved = run(ranks, low_rank(rank), 3, "", folder / "a", channels_last);
        const Ranks again = run(ranks, low_rank(rank), 6, folder / "a", "", channels_last);
        ASSERT_TRUE(saved.errors[0].contains("conv.weight"));
        EXPECT_TRUE(saved.errors[0].at("conv.weight").any().item<bool>()) << where;
        for (std::size_t r = 0; r < saved.errors.size(); ++r) {
          expect_equal(again.errors[r], saved.errors[r], where);
          expect_equal(again.next[r], saved.next[r], where);
        }
        expect_equal(again.contents, whole.contents, where);
        EXPECT_TRUE(again.notes.empty()) << where;
      }
    }
  }
}

// No error is lost or counted twice, for any number of ranks.
TEST(LeftOut, ErrorFeedbackIsPreservedAcrossWorldSizes) {
  for (const int before : {2, 3, 4}) {
    const Folder folder;
    const Ranks saved = run(before, low_rank(), 4, "", folder / "a");
    const Contents wanted = sum_of(saved.errors);
    for (const int after : {2, 3, 4, 6}) {
      const std::string where = str(before, " ranks, then ", after);
      const Ranks loaded = run(after, low_rank(), 4, folder / "a");
      expect_close(sum_of(loaded.errors), wanted, where);
      for (const Contents& next : loaded.next) expect_equal(next, saved.next[0], where);
    }
    // Factors of another rank start again; the errors are kept.
    const Ranks other = run(before, low_rank(2), 4, folder / "a");
    expect_close(sum_of(other.errors), wanted, "rank 2");
    EXPECT_FALSE(other.next[0].at("head.weight").any().item<bool>());
  }
}

TEST(LeftOut, IsDroppedWithANoteIfNothingIsCompressed) {
  const Folder folder;
  run(2, low_rank(), 4, "", folder / "a");
  zero::Options plain = low_rank();
  plain.grad_compression = GradCompression::none;
  for (const Ranks& loaded :
       {run(1, low_rank(), 5, folder / "a"), run(2, plain, 5, folder / "a")}) {
    ASSERT_EQ(loaded.notes.size(), 1u);
    EXPECT_TRUE(contains(loaded.notes[0], "The PowerSGD error feedback of 3 parameters is dropped"))
        << loaded.notes[0];
  }
}

// A checkpoint has no errors before the first compressed step, and can be loaded without them.
TEST(LeftOut, IsSavedFromTheFirstCompressedStepOn) {
  for (const int steps : {1, 2, 3}) {
    const Folder folder;
    run(2, low_rank(1, 2), steps, "", folder / "a");
    checkpoint::Checkpoint from(str(folder / "a", "/", checkpoint::folder_name(steps)));
    int found = 0;
    for (const auto& [state, dtype] : from.states("conv.weight")) {
      found += parallel::is_power_sgd_state(state) ? 1 : 0;
    }
    EXPECT_EQ(found, steps > 2 ? 3 : 0) << steps;  // two replicas, and the factor of both
    expect_equal(run(2, low_rank(1, 2), 6, folder / "a").contents,
                 run(2, low_rank(1, 2), 6).contents, str("saved in step ", steps));
  }
}

}  // namespace
}  // namespace tessera::save_test
