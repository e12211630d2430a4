"""Layouts as a person trains them, with real processes: the same bits for sharded and pipelined
runs, near ones for tensor and context ranks; resumed under another layout; `tutti parity`."""
import json
import subprocess
import unittest

from helpers.runs import BIN, RealRuns, children, rank_of, stored, wait_for


def flip_in_memory(pid, pattern):
    """Flips a bit in each place of the process's own memory that holds these bytes; how many."""
    flipped = 0
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "r+b", 0) as memory:
        places = maps.read().splitlines()
        for place, rights in (line.split()[:2] for line in places):
            begin, end = (int(word, 16) for word in place.split("-"))
            if rights != "rw-p" or end - begin > 1 << 28:
                continue
            try:
                memory.seek(begin)
                held = memory.read(end - begin)
                at = held.find(pattern)
                while at >= 0:
                    memory.seek(begin + at)
                    memory.write(bytes([pattern[0] ^ 1]))
                    flipped += 1
                    at = held.find(pattern, at + 1)
            except OSError:  # what no one may read; or the process has noticed and ended
                pass
    return flipped

P = "parallel."
MESH = [P + "engine=mesh"]
SHARDED = [P + "engine=sharded"]


class Layouts(RealRuns):
    EXACT = {
        "zero 3": [*SHARDED, P + "zero=3", P + "workers=2"],
        "zero 2, three ranks, gloo": [*SHARDED, P + "zero=2", P + "workers=3", P + "transport=gloo"],
        "pipeline": [*MESH, P + "pipeline=2", P + "workers=2"],
        "zero bubble, zero 1": [*MESH, P + "pipeline=2", P + "workers=4", P + "zero=1",
                                P + "pipeline_schedule=zb-h1"],
    }
    NEAR = {
        "tensor": [*MESH, P + "tensor=2", P + "workers=2"],
        "context": [*MESH, P + "context=2", P + "workers=2"],
    }

    def test_same_numbers_and_resumed_under_another(self):
        self.train("one")
        losses = self.scalar("one", "loss")
        for number, (what, settings) in enumerate(self.EXACT.items()):
            with self.subTest(what):
                self.train(f"exact{number}", *settings)
                self.assert_same_bits("one", f"exact{number}", what)
        for number, (what, settings) in enumerate(self.NEAR.items()):
            with self.subTest(what):
                self.train(f"near{number}", *settings)
                for ours, theirs in zip(self.scalar(f"near{number}", "loss"), losses, strict=True):
                    self.assertAlmostEqual(ours, theirs, 4)

    def test_resumed_under_another_layout(self):
        steady = "schedule.kind=constant"
        self.train("one", steady)
        self.train("cut", steady, *self.EXACT["zero 3"], "duration=4 steps")
        self.resume("cut", "duration=8 steps", P + "engine=mesh", P + "zero=0", P + "pipeline=2")
        self.assert_same_bits("one", "cut")

    def test_parity_tells(self):
        good = self.tutti("parity", "tiny.yaml", *self.sets(*self.NEAR["tensor"]), "--html",
                          "parity.html")
        self.assertIn("<html", self.read("parity.html"))
        self.assertIn("tensor", good.stdout)
        bad = self.tutti("parity", "tiny.yaml", *self.sets(*self.NEAR["tensor"]), "--with-fault",
                         "uncut-norm", code=3)
        self.assertIn("norm", bad.stdout)

    def test_a_bit_that_flips_in_a_workers_memory_ends_the_run(self):
        """Weights that do not move (lr 0), so that a checkpoint tells what to look for."""
        settings = ["optimizer.lr=0", P + "workers=3", P + "watch_divergence=5", "duration=100000 steps",
                    "checkpoint.every=10 steps", "evaluation.every=100000 steps"]
        process = self.start(*self.words("train", ["tiny.yaml", "--out", "run"], settings))
        self.assertTrue(wait_for(lambda: self.newest("run") >= 10), self.read("output.txt"))
        name = "model.layers.1.mlp.up_proj.weight"
        manifest = json.loads(self.read(self.checkpoint("run", 10, "manifest.json")))
        entry = next(e for e in manifest["entries"] if e["name"] == "model/" + name)
        pattern = stored(self.checkpoint("run", 10, entry["file"]))[entry.get("key", entry["name"])]
        worker = next(pid for pid in children(process.pid) if rank_of(pid) == 1)
        self.assertGreater(flip_in_memory(worker, pattern), 0)
        self.assertEqual(process.wait(60), 1)
        self.assertRegex(self.read("output.txt"),
                         f"model/{name} is not the same on all ranks that hold it: rank 1 differs from "
                         "ranks 0, 2")
        with open(self.checkpoint("run", self.newest("run"), entry["file"]), "rb") as file:
            self.assertIn(pattern, file.read(), "the damaged weight went into a checkpoint")

    def test_islands(self):
        """Two islands of two workers: what is resumed is what went on, and is used like any run."""
        islands = ["schedule.kind=constant", "parallel.workers=4", "parallel.islands=2",
                   "parallel.local_steps=2", "checkpoint.every=2 steps", "batch.global=16"]
        self.train("whole", *islands)
        self.train("cut", *islands, "duration=3 steps")  # waits for the mean after step 4
        self.assertEqual(self.newest("cut"), 4)
        self.resume("cut", "duration=8 steps")
        self.assert_same_bits("whole", "cut")
        self.tutti("eval", "whole")
        self.tutti("generate", "whole", "--tokens", "3", "--temperature", "0", text=False)
        self.tutti("export", "whole", "--to", "hf")
        self.assertLess(self.scalar("whole", "loss")[-1], self.scalar("whole", "loss")[0])
        self.assertIn("each of 2 islands", self.tutti("layout", "show", "tiny.yaml", *self.sets(*islands)).stdout)
        self.assertIn("parallel.local_steps = 2: trains another model",
                      self.tutti("parity", "tiny.yaml", *self.sets(*islands), code=2).stderr)

    def test_a_programs_mistakes(self):
        for words, wanted in ((["data=0"], "parallel.workers = 0: must be a whole number from 1"),
                              (["tensor=x"], "parallel.tensor = 0"), (["tensr=2"], "usage:")):
            got = subprocess.run([f"{BIN}/example_spread_net", *words], cwd=self.folder,
                                 capture_output=True, text=True, timeout=60)
            self.assertEqual((got.returncode, wanted in got.stderr), (2, True), got)

    def test_a_bug_that_the_layout_has_no_place_for(self):
        got = self.tutti("parity", "tiny.yaml", *self.sets(*self.NEAR["tensor"]), "--with-fault",
                         "stale-gather", code=2)
        self.assertIn("--with-fault = stale-gather: does nothing in a layout without zero", got.stderr)
        self.assertIn("nothing is spread", self.tutti("parity", "tiny.yaml").stdout)

    def test_workers_of_every_verb_that_reads_a_recipe(self):
        for verb in (["recipe", "check"], ["layout", "show"], ["parity"]):
            self.tutti(*verb, "tiny.yaml", "--workers", "2", "--set", "parallel.engine=sharded",
                       "--set", "parallel.zero=1")
            self.assertIn("parallel.workers = 5", self.tutti(*verb, "tiny.yaml", "--workers", "5", "--set",
                                                             "seed=4", code=2).stderr)
            self.assertIn("parallel.workers = 0", self.tutti(*verb, "tiny.yaml", "--workers", "0",
                                                             code=2).stderr)

    def test_a_programs_own_model(self):
        """examples/spread_net.cc: the same losses in every layout, and what it cannot be is refused."""
        def run(*words, code=0):
            got = subprocess.run([f"{BIN}/example_spread_net", *words], cwd=self.folder, text=True,
                                 capture_output=True, timeout=120)
            self.assertEqual(got.returncode, code, (words, got.stdout, got.stderr))
            return got.stdout + got.stderr
        last = run().splitlines()[-1]
        self.assertRegex(last, r"held-out loss 0\.1")
        for words in (["tensor=3"], ["pipeline=2", "zero=1", "data=2"]):
            self.assertEqual(run(*words).splitlines()[-1], last, words)
        self.assertIn("parallel.rules = wde=tensor: names no axis of the task: those are class, embed, wide",
                      run("tensor=2", "rules=wde=tensor", code=2))
        self.assertIn("makes 5 stages", run("pipeline=5", code=2))
        self.assertIn("does not ask which of their tokens are here", run("context=2", code=1))

    def test_layout_show(self):
        told = self.tutti("layout", "show", "tiny.yaml", *self.sets(*MESH, P + "tensor=2",
                                                                    P + "workers=2")).stdout
        self.assertRegex(told, r"layers\.\*\.self_attn\.o_proj\.weight +\[32 x 32\] +Shard\(1\) on "
                               r"tensor: \[32 x 16\] +x 2")
        self.assertRegex(told, r"o_proj\.weight +Partial -> Shard\(0\) +reduce-scatter / all-gather")
        self.assertRegex(told, r"tensor +all_gather_v +\d+ +[\d.]+ KiB")
        context = self.tutti("layout", "show", "tiny.yaml", *self.sets(
            *MESH, P + "context=2", P + "workers=4", P + "zero=2")).stdout
        # Of 2 layers x 3 micro-batches each: keys and values go forward once, again in backward, and
        # their gradients two hops home.
        self.assertRegex(context, r"ring +send +24 ")
        self.assertRegex(context, r"shard +all_gather_v ")
        empty = self.tutti("layout", "show", "tiny.yaml", *self.sets(
            *MESH, P + "pipeline=3", P + "workers=3", P + "pipeline_cut=1 0 1")).stdout
        self.assertIn("pipeline", empty)
        alone = self.tutti("layout", "show", "tiny.yaml").stdout
        self.assertIn("no conversion within the model", alone)

    @staticmethod
    def sets(*settings):
        return [word for setting in settings for word in ("--set", setting)]


if __name__ == "__main__":
    unittest.main()
