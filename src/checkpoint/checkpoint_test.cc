// Saving, loading in other layouts, keeping, refusing another model.
#include "base/clock.h"
#include "checkpoint/sample_tensors.h"

using namespace tutti;
using namespace tutti::checkpoint;
using Steps = std::vector<std::int64_t>;

TEST_CASE("checkpoint: what any number of ranks saved is read back") {
  for (int world : {1, 2, 3, 8}) {  // 8: more ranks than tensors
    CAPTURE(world);
    const TempFolder folder;
    Run run(folder.path() / "deep" / "checkpoints", world);
    const Sample sample(static_cast<std::uint64_t>(world));
    const Json state = {{"position", 17}, {"scale", 0.1}, {"text", "\u00e9\n"}, {"none", nullptr}};
    run.save(50, sample, state);
    const Latest found = latest(folder.path() / "deep" / "checkpoints");
    CHECK(found.step == 50);
    CHECK(found.refused.empty());
    const Loader loader(found.path);
    CHECK(loader.step() == 50);
    CHECK(loader.manifest().world == world);
    CHECK(loader.state() == state);
    CHECK(sample.difference(loader) == "");
    CHECK(Sample(99).difference(loader) == "model/w differs");
    CHECK(run[0].last_saved() == 50);
    CHECK(names_in(found.path.parent_path()) == "step-00000050");
  }
}

TEST_CASE("checkpoint: share_out gives every tensor one owner and every rank about as much") {
  const std::vector<std::size_t> sizes{100, 1, 50, 50, 3, 0, 0, 99};
  const std::vector<int> owners = share_out(sizes, 3);
  std::vector<std::size_t> load(3);
  for (std::size_t i = 0; i < sizes.size(); ++i)
    load.at(static_cast<std::size_t>(owners[i])) += sizes[i];
  for (std::size_t one : load) CHECK((one >= 99 && one <= 104));
  CHECK(share_out({}, 2).empty());
}

TEST_CASE("checkpoint: the state of rank 0 counts; saves go on one after the other") {
  const TempFolder folder;
  Run run(folder.path(), 2, {0, 0});
  const Sample sample(1);
  for (int step = 1; step <= 5; ++step)  // without waiting in between
    for (std::size_t rank : {0u, 1u})
      run[rank].save(step, sample.views(), {{"rank", rank}, {"at", step}});
  run[1].wait();
  run[0].wait();
  CHECK(steps_in(folder.path()) == Steps{1, 2, 3, 4, 5});
  for (int step = 1; step <= 5; ++step)
    CHECK(Loader(folder.path() / step_folder_name(step)).state() ==
          Json{{"rank", 0}, {"at", step}});
}

TEST_CASE("checkpoint: save returns how long it held the caller up") {
  const TempFolder folder;
  Saver saver(folder.path(), 0, 2, {}, 0.2);  // rank 1 never comes: the write takes 0.2 s
  const Sample sample(1);
  double start = real_clock().now();
  const double first = saver.save(1, sample.views(), {});
  CHECK(first > 0);
  CHECK(first <= real_clock().now() - start);
  CHECK(first < 0.15);
  CHECK_THROWS_AS(saver.save(2, sample.views(), {}), WorldError);
  CHECK(real_clock().now() - start >= 0.2);
}

TEST_CASE("checkpoint: which ones are kept") {
  CHECK(superseded({}, {2, 0}) == Steps{});
  CHECK(superseded({10}, {1, 0}) == Steps{});
  CHECK(superseded({10, 20, 30, 40}, {2, 0}) == Steps{10, 20});
  CHECK(superseded({10, 20, 30, 40}, {1, 20}) == Steps{10, 30});
  CHECK(superseded({10, 20, 30, 40}, {1, 7}) == Steps{10, 20, 30});
  CHECK(superseded({10, 20, 30, 40}, {0, 0}) == Steps{});
  CHECK(superseded({10, 20, 30, 40}, {4, 0}) == Steps{});
  CHECK(superseded({10, 20, 30, 40}, {9, 0}) == Steps{});

  const TempFolder folder;
  Run run(folder.path(), 2, {2, 30});
  for (int step = 10; step <= 70; step += 10) run.save(step, Sample(1));
  CHECK(steps_in(folder.path()) == Steps{30, 60, 70});
}

TEST_CASE("checkpoint: a run that went back keeps its own checkpoints, not those of a future") {
  const TempFolder folder;
  Run run(folder.path(), 1, {1, 0});
  run.save(100, Sample(1));
  run.save(40, Sample(2));
  CHECK(steps_in(folder.path()) == Steps{40, 100});
  run.save(50, Sample(3));
  CHECK(steps_in(folder.path()) == Steps{50, 100});
  run.save(100, Sample(4));
  CHECK(steps_in(folder.path()) == Steps{100});
  CHECK(Sample(4).difference(Loader(latest(folder.path()).path)) == "");
}

TEST_CASE("checkpoint: a step saved again takes the place of the old one") {
  const TempFolder folder;
  for (int version = 1; version <= 3; ++version) {
    Run run(folder.path(), version);  // also by other numbers of ranks
    run.save(5, Sample(static_cast<std::uint64_t>(version)));
    CHECK(names_in(folder.path()) == "step-00000005");
    CHECK(Sample(static_cast<std::uint64_t>(version))
              .difference(Loader(folder.path() / "step-00000005")) == "");
  }
}

TEST_CASE("checkpoint: names of folders and back") {
  for (std::int64_t step : {0l, 7l, 99999999l, 100000000l, 999999999999999999l})
    CHECK(step_of(step_folder_name(step)) == step);
  for (const char* name :
       {"", "step-", "step-5", "step-0000005x", "step-00000050.partial", "step-000000050",
        "step--0000050", "xstep-00000050", "step-9999999999999999999"})
    CHECK_FALSE(step_of(name));
  const TempFolder folder;
  write_file(folder.path() / "step-00000001", "a file, no folder");
  CHECK(steps_in(folder.path()).empty());
  CHECK(steps_in(folder.path() / "absent").empty());
  CHECK(latest(folder.path() / "absent").path.empty());
  CHECK(list_text(folder.path()).starts_with("no checkpoint in"));
  CHECK_FALSE(verify_text(folder.path()).second);
}

TEST_CASE("checkpoint: reading what is not there") {
  const TempFolder folder;
  Run(folder.path(), 2).save(1, Sample(1));
  const Loader loader(folder.path() / "step-00000001");
  std::byte out[1000];
  CHECK_THROWS_WITH_AS(loader.read("absent", whole({1}), out), doctest::Contains("absent"),
                       WorldError);
  CHECK_THROWS_WITH_AS(loader.read("model/w", Box{{6, 0}, {2, 5}}, out),
                       doctest::Contains("model/w [6:8, 0:5] is not stored whole"), WorldError);
}

TEST_CASE("checkpoint: pieces with a hole or stored twice are refused") {
  const std::vector<float> data(12);
  const auto save = [&](const fs::path& folder, const Box& a, const Box& b) {
    Saver zero(folder, 0, 2, {}), one(folder, 1, 2, {});
    const auto* bytes = reinterpret_cast<const std::byte*>(data.data());
    const TensorView first{"t", DType::f32, {4, 3}, bytes, a},
        second{"t", DType::f32, {4, 3}, bytes, b};
    zero.save(1, std::span(&first, 1), {});
    one.save(1, std::span(&second, 1), {});
    zero.wait();
    one.wait();
    return latest(folder);
  };
  const TempFolder good, hole, twice;
  CHECK(save(good.path(), {{0, 0}, {2, 3}}, {{2, 0}, {2, 3}}).step == 1);
  const Latest torn = save(hole.path(), {{0, 0}, {2, 3}}, {{3, 0}, {1, 3}});
  CHECK(torn.step == -1);
  CHECK(torn.refused.at(0).find("t is not stored whole") != std::string::npos);
  const Latest doubled = save(twice.path(), {{0, 0}, {2, 3}}, {{1, 0}, {2, 3}});
  CHECK(doubled.step == -1);
  CHECK(doubled.refused.at(0).find("t is stored twice in [1:2, 0:3]") != std::string::npos);
}

TEST_CASE("checkpoint: another model is refused, every difference named") {
  const TempFolder folder;
  Run(folder.path(), 1).save(1, Sample(1));
  const Loader loader(folder.path() / "step-00000001");
  try {
    loader.require({{"model/w", DType::f32, {7, 6}},
                    {"model/b", DType::f32, {13}},
                    {"extra", DType::f32, {1}},
                    {"scalar", DType::f64, {}},
                    {"empty", DType::f32, {0, 3}},
                    {"ids", DType::i64, {2, 2}}});
    FAIL("accepted");
  } catch (const ConfigError& error) {
    CHECK(error.violations().size() == 4);
    const std::string text = error.what();
    for (const char* part :
         {"model/w = F32 [0:7, 0:5]: the model has F32 [0:7, 0:6]", "model/b = BF16 [0:13]",
          "extra: is missing from the checkpoint", "another model",
          "optimizer.exp_avg/w: is in the checkpoint but not in the model"})
      CHECK_MESSAGE(text.find(part) != std::string::npos, part, " in ", text);
  }
}

TEST_CASE("checkpoint: list, show and verify") {
  const TempFolder folder;
  Run run(folder.path(), 2);
  run.save(1, Sample(1), {{"position", 3}});
  run.save(2, Sample(2));
  const std::string list = list_text(folder.path());
  CHECK(list.find("step 1  ") != std::string::npos);
  CHECK(list.find("step 2  ") != std::string::npos);
  const std::string show = show_text(folder.path() / "step-00000001");
  CHECK(show.starts_with("step 1, written by 2 ranks, 6 pieces"));
  CHECK(show.find("{\"position\":3}") != std::string::npos);
  CHECK(show.find("model/b  BF16 [0:13]") != std::string::npos);
  CHECK(verify_text(folder.path()).second);
  CHECK(verify_text(folder.path() / "step-00000002").second);
}
