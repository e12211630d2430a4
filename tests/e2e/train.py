"""Training as a person runs it: the same bits in every layout, every option learns, what is left in
the run's folder and what can be made of it."""
import json
import os
import re
import subprocess
import tempfile
import time
import unittest

from helpers.runs import BIN, RealRuns, processes_about

DROPOUT = ("model.family=gpt2", "model.kv_heads=0", "model.dropout=0.1")


class SameBits(RealRuns):
    LAYOUTS = [
        ("two workers", ["parallel.workers=2"]),
        ("three workers", ["parallel.workers=3"]),
        ("six workers", ["parallel.workers=6"]),
        ("gloo", ["parallel.workers=2", "parallel.transport=gloo"]),
        ("three over gloo", ["parallel.workers=3", "parallel.transport=gloo"]),
        ("a bucket for each tensor", ["parallel.workers=2", "parallel.bucket_bytes=1"]),
        ("small buckets over gloo", ["parallel.workers=2", "parallel.bucket_bytes=10kb",
                                     "parallel.transport=gloo"]),
        ("no overlap", ["parallel.workers=2", "parallel.overlap=off"]),
        ("checkpoints between", ["checkpoint.every=1 steps", "checkpoint.keep_last=0"]),
        ("checkpoints waited for", ["parallel.workers=2", "checkpoint.every=1 steps",
                                    "checkpoint.asynchronous=off"]),
        ("evaluations between", ["evaluation.every=3 steps"]),
        ("recomputation", ["recompute=full"]),
    ]

    def test_layouts(self):
        self.train("one")
        for number, (what, settings) in enumerate(self.LAYOUTS):
            with self.subTest(what):
                self.train(f"layout{number}", *settings)
                self.assert_same_bits("one", f"layout{number}", what)
                for key in ("loss", "validation_loss"):
                    self.assertEqual(self.summary("one")[key], self.summary(f"layout{number}")[key])

    def test_another_seed_is_another_run(self):
        self.train("one")
        self.train("other", "seed=4")
        ours, theirs = self.sums("one"), self.sums("other")
        self.assertTrue(all(ours[name] != theirs[name] for name in ours if name.startswith("model/")
                            and "norm" not in name))


class Options(RealRuns):
    OPTIONS = {
        "adamw": [],
        "gpt2 with dropout": [*DROPOUT],
        "muon": ["optimizer.name=muon"],
        "sgd": ["optimizer.name=sgd", "optimizer.lr=0.3"],
        "bf16": ["precision=bf16"],
        "fp16": ["precision=fp16"],
        "fp32-fast": ["precision=fp32-fast"],
        "document mask": ["data.document_mask=on", "data.train=lines.jsonl"],
        "no accumulation": ["batch.micro=6"],
        "recomputation with dropout": [*DROPOUT, "recompute=full"],
        "wsd, tied, qk_norm, qkv_bias": ["schedule.kind=wsd", "model.tied=on", "model.qk_norm=on",
                                         "model.qkv_bias=on"],
    }

    def test_each_learns_the_same_on_one_and_two(self):
        with open(self.path("lines.jsonl"), "w") as file:
            for line in self.read("text.txt").split(" e"):
                file.write(json.dumps({"text": line}) + "\n")
        for number, (what, settings) in enumerate(self.OPTIONS.items()):
            with self.subTest(what):
                for workers in (1, 2):
                    self.train(f"{number}-{workers}", *settings, "duration=24 steps",
                               flags=["--workers", str(workers)])
                losses = self.scalar(f"{number}-1", "loss")
                self.assertEqual(len(losses), 24)
                self.assertLess(losses[-1], losses[0] - 1, (what, losses))
                self.assert_same_bits(f"{number}-1", f"{number}-2", what)
        numbers = list(self.OPTIONS)
        self.assert_same_bits(f"{numbers.index('gpt2 with dropout')}-1",
                              f"{numbers.index('recomputation with dropout')}-2")

    def test_not_reproducible(self):
        self.train("one")
        self.train("two", "reproducible=off", "parallel.workers=2")
        self.assertAlmostEqual(self.summary("one")["loss"], self.summary("two")["loss"], delta=1e-3)

    def test_a_duration_in_time(self):
        self.train("run", "duration=1s", "parallel.workers=2")
        self.assertGreater(self.summary("run")["steps"], 5)
        self.assertLess(self.summary("run")["seconds"], 5)


class Folder(RealRuns):
    def test_what_is_left(self):
        got = self.train("run", "parallel.workers=2", "checkpoint.every=3 steps",
                         "checkpoint.keep_every=6 steps", "checkpoint.keep_last=1",
                         "duration=10 steps", "logging.sample_tokens=5", flags=["--json"])
        summary = json.loads(got.stdout.splitlines()[-1])
        self.assertEqual(summary, self.summary("run"))
        self.assertLessEqual({"steps", "loss", "validation_loss", "tokens_per_second", "mfu",
                              "seconds", "workers", "exit"}, summary.keys())
        self.assertEqual((summary["steps"], summary["workers"], summary["exit"]), (10, 2, 0))
        for key in ("loss", "validation_loss", "tokens_per_second", "mfu", "seconds"):
            self.assertGreater(summary[key], 0, key)
        self.assertEqual(summary["loss"], self.scalar("run", "loss")[-1])
        self.assertIn("duration: 10 steps", self.read("run/recipe.yaml"))
        self.assertEqual(self.steps("run"), [6, 10])
        for rank in (0, 1):
            self.assertTrue(os.path.exists(self.path(f"run/logs/rank-00{rank}.log")))
            for line in self.read(f"run/events/rank-00{rank}.jsonl").splitlines():
                self.assertEqual(json.loads(line)["rank"], rank)
        self.assertRegex(" ".join(os.listdir(self.path("run/tensorboard"))), "tfevents")
        page = self.read("run/report.html")
        self.assertIn("tiny", page)
        for outside in (r"(src|href)\s*=\s*[\"']?\s*(https?:)?//", r"@import", r"<link",
                        r"url\((?!#)"):
            self.assertIsNone(re.search(outside, page), outside)
        self.assertEqual(processes_about(self.folder), [])

    def test_quiet(self):
        got = self.train("run", flags=["--quiet"])
        self.assertEqual((got.stdout, got.stderr), ("", ""))

    def test_without_report_and_tensorboard(self):
        self.train("run", "logging.report=off", "logging.tensorboard=off")
        self.assertFalse(os.path.exists(self.path("run/report.html")))
        self.assertEqual(os.listdir(self.path("run/tensorboard")), [])

    def test_a_second_run_in_the_folder(self):
        self.train("run")
        before = self.sums("run")
        self.assertIn("tutti resume", self.train("run", code=2).stderr)
        self.assertEqual(self.sums("run"), before)

    def test_longer_by_resume(self):
        self.train("run", "schedule.kind=constant")
        self.train("whole", "schedule.kind=constant", "duration=12 steps")
        self.resume("run", "duration=12 steps")
        self.assert_same_bits("run", "whole")


class Verbs(RealRuns):
    def setUp(self):
        super().setUp()
        self.train("run", "duration=40 steps", "checkpoint.every=20 steps")

    def test_eval_is_the_summary(self):
        found = json.loads(self.tutti("eval", "run", "--json").stdout)
        self.assertAlmostEqual(found["validation_loss"], self.summary("run")["validation_loss"], 6)
        self.assertEqual(found["step"], 40)
        self.assertIn("validation loss", self.tutti("eval", "run").stdout)
        early = json.loads(self.tutti("eval", "run", "--checkpoint", "20", "--json").stdout)
        self.assertEqual(early["step"], 20)
        self.assertGreater(early["validation_loss"], found["validation_loss"])
        self.assertIn("20", self.tutti("eval", "run", "--checkpoint", "21", code=2).stderr)

    def test_generate(self):
        def said(*more):
            return self.tutti("generate", "run", "--prompt", "so", *more).stdout
        greedy = said("--tokens", "50", "--temperature", "0")
        self.assertEqual((greedy[:2], len(greedy)), ("so", 2 + 50 + 1))
        first = said("--tokens", "80", "--seed", "1")
        self.assertEqual(first, said("--tokens", "80", "--seed", "1"))
        self.assertNotEqual(first, said("--tokens", "80", "--seed", "2"))
        likeliest = said("--tokens", "50", "--top-k", "1")
        self.assertEqual(likeliest, greedy)

    def test_generate_streams(self):
        words = [f"{BIN}/tutti", "generate", "run", "--prompt", "so", "--tokens", "3000"]
        with subprocess.Popen(words, cwd=self.folder, stdout=subprocess.PIPE) as process:
            arrivals = []
            while os.read(process.stdout.fileno(), 4096):
                arrivals.append(time.monotonic())
            self.assertEqual(process.wait(60), 0)
        self.assertGreater(len(arrivals), 100)
        self.assertGreater(arrivals[-1] - arrivals[0], 0.05)

    def test_a_reader_that_goes_away(self):
        words = f"'{BIN}/tutti' generate run --tokens 100000 | head -c 1 | wc -c"
        got = subprocess.run(words, shell=True, cwd=self.folder, capture_output=True, text=True,
                             timeout=60)
        self.assertEqual((got.stdout.strip(), got.stderr), ("1", ""))

    def test_checkpoint_list_and_show(self):
        listed = self.tutti("checkpoint", "list", "run").stdout
        self.assertEqual(re.findall(r"step (\d+)", listed), ["20", "40"])
        shown = self.tutti("checkpoint", "show", "run").stdout
        self.assertIn("step 40, written by 1 ranks", shown)
        for name in self.sums("run"):
            self.assertIn(name, shown)
        self.assertEqual(self.tutti("checkpoint", "verify", "run").stdout.count(": whole"), 2)

    def test_export_and_start_from_it(self):
        self.tutti("export", "run", "--to", "out")
        trained = self.summary("run")["validation_loss"]
        self.write("from.yaml", "base: tiny.yaml\nmodel: {from: out}\n")
        self.tutti("train", "from.yaml", "--out", "from", "--set", "optimizer.lr=0", "--set",
                   "duration=1 steps")
        self.assertAlmostEqual(self.summary("from")["validation_loss"], trained, 5)
        import torch
        from transformers import AutoModelForCausalLM
        model = AutoModelForCausalLM.from_pretrained(self.path("out")).eval()
        held_out = torch.tensor(list(self.read("text.txt").encode()))
        held_out = held_out[int(len(held_out) * 0.8):]
        blocks = held_out.unfold(0, 33, 32)
        with torch.no_grad():
            logits = model(blocks[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), blocks[:, 1:].flatten())
        self.assertAlmostEqual(loss.item(), trained, 4)


class Programs(unittest.TestCase):
    """What uses the library: fit() with the program's own module, loss and data."""

    def run_in_a_folder(self, name):
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run([os.path.join(os.path.abspath(BIN), name)], cwd=folder, text=True,
                                  capture_output=True, timeout=120)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertTrue(os.listdir(f"{folder}/runs"))
            return done.stdout

    def test_example(self):
        said = self.run_in_a_folder("example_two_spirals")
        self.assertLess(float(said.split("held-out loss ")[-1]), 0.1)

    def test_two_trainings_in_one_program(self):
        words = self.run_in_a_folder("fit_twice").split("\n")[-2].split()
        first, second, weight = (float(words[i]) for i in (1, 3, 5))
        self.assertLess(second, first / 4)
        self.assertGreater(weight, 2)  # from 0.5 towards 3, in the launcher


if __name__ == "__main__":
    unittest.main()
