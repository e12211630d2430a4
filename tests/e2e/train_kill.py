"""Nothing that ends a run early takes bits from it: kills at random moments, signals, damaged
checkpoints, a full disk."""
import os
import random
import shutil
import signal
import subprocess
import unittest

from helpers.runs import RealRuns, children, meeting_places, processes_about, wait_for

KILLS = 20
LONG = ("duration=120 steps", "checkpoint.every=2 steps", "checkpoint.keep_last=3",
        "evaluation.every=40 steps")


class Kills(RealRuns):
    def victims(self, launcher, draw):
        workers = children(launcher)
        kind = draw.choice(["worker", "worker", "launcher", "all"])
        if kind == "worker" and workers:
            return [draw.choice(workers)]
        return [launcher] if kind == "launcher" else [launcher, *workers]

    def kill_once(self, process, draw):
        """After some checkpoints more, or (one time in four) while it starts."""
        goal = self.newest("run") + draw.randint(1, 3) * 2
        if draw.random() < 0.25:
            wait_for(lambda: process.poll() is not None, draw.uniform(0, 0.5))
        else:
            wait_for(lambda: process.poll() is not None or self.newest("run") >= goal)
            wait_for(lambda: process.poll() is not None, draw.uniform(0, 0.03))
        if process.poll() is not None:
            return 0
        for victim in self.victims(process.pid, draw):
            try:
                os.kill(victim, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.assertIn(process.wait(60), (1, -signal.SIGKILL))
        return 1

    def test_kills_at_random_moments(self):
        before, draw = meeting_places(), random.Random(7)
        settings = [*LONG, "duration=240 steps"]
        self.train("undisturbed", *settings)
        begin = self.words("train", ["tiny.yaml", "--out", "run"], settings, ["--workers", "2"])
        process = self.start(*begin)
        kills = 0
        for _ in range(KILLS):
            kills += self.kill_once(process, draw)
            if not os.path.exists(self.path("run/recipe.yaml")):  # killed before it began
                shutil.rmtree(self.path("run"), ignore_errors=True)
                process = self.start(*begin)
                continue
            process = self.start("resume", "run", "--workers", str(draw.choice([1, 2, 3])))
        self.assertEqual(kills, KILLS, "the run ended before the last kill")
        self.assertEqual(process.wait(60), 0, self.read("output.txt")[-2000:])
        self.assert_same_bits("run", "undisturbed")
        for key in ("steps", "loss", "validation_loss", "exit"):
            self.assertEqual(self.summary("run")[key], self.summary("undisturbed")[key], key)
        self.assertEqual(self.steps("run"), self.steps("undisturbed"))
        self.assertEqual(len(os.listdir(self.path("run/checkpoints"))), 3)
        self.assertTrue(wait_for(lambda: not processes_about(self.folder)))
        self.assertTrue(wait_for(lambda: not meeting_places() - before), meeting_places() - before)

    def test_signals(self):
        self.train("undisturbed", *LONG)
        for number, (name, to_all) in enumerate([(signal.SIGINT, True), (signal.SIGTERM, False),
                                                 (signal.SIGINT, False)]):
            with self.subTest(name, to_all=to_all):
                run = f"run{number}"
                settings = [*LONG, "checkpoint.every=5 steps"]
                process = self.start(*self.words("train", ["tiny.yaml", "--out", run], settings,
                                                 ["--workers", "2"]))
                self.assertTrue(wait_for(lambda: self.newest(run) >= 10))
                (os.killpg if to_all else os.kill)(process.pid, name)
                self.assertEqual(process.wait(60), 130)
                self.assertEqual(self.summary(run)["exit"], 130)
                self.assertEqual(self.newest(run), self.summary(run)["steps"])
                self.assertLess(self.newest(run), 120)
                self.assertIn(f"tutti resume {run}", self.read("output.txt"))
                self.assertEqual(processes_about(self.folder), [])
                self.resume(run, flags=["--workers", "3"])
                self.assert_same_bits(run, "undisturbed")

    def test_two_runs_in_one_folder(self):
        process = self.start(*self.words("train", ["tiny.yaml", "--out", "run"], LONG))
        self.assertTrue(wait_for(lambda: self.newest("run") > 0))
        self.assertIn("run", self.train("run", code=2).stderr)
        self.assertIn(str(process.pid), self.resume("run", code=2).stderr)
        self.assertEqual(process.wait(60), 0)
        self.train("undisturbed", *LONG)
        self.assert_same_bits("run", "undisturbed")


def flip(path, at):
    with open(path, "r+b") as file:
        file.seek(at, os.SEEK_END if at < 0 else os.SEEK_SET)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 4]))


class DamagedCheckpoints(RealRuns):
    SHARD, MANIFEST = "rank-000.safetensors", "manifest.json"
    DAMAGES = {  # of the newest checkpoint: what is done to it, and what must be named
        "truncated": (lambda folder: os.truncate(f"{folder}/rank-000.safetensors", 5000), SHARD),
        "empty": (lambda folder: os.truncate(f"{folder}/rank-000.safetensors", 0), SHARD),
        "a bit of a tensor": (lambda folder: flip(f"{folder}/rank-000.safetensors", -900), SHARD),
        "a bit of the header": (lambda folder: flip(f"{folder}/rank-000.safetensors", 20), SHARD),
        "a bit of the manifest": (lambda folder: flip(f"{folder}/manifest.json", 300), MANIFEST),
        "half a manifest": (lambda folder: os.truncate(f"{folder}/manifest.json", 700), MANIFEST),
        "no manifest": (lambda folder: os.remove(f"{folder}/manifest.json"), MANIFEST),
        "no tensors": (lambda folder: os.remove(f"{folder}/rank-000.safetensors"), SHARD),
    }

    def setUp(self):
        super().setUp()
        self.train("whole", "checkpoint.every=4 steps")

    def said(self, got, run):
        return got.stderr + self.read(run, "logs/rank-000.log")

    def test_an_older_one_is_taken(self):
        for what, (damage, name) in self.DAMAGES.items():
            with self.subTest(what):
                run = self.copy("whole", "run")
                damage(self.checkpoint(run, 8))
                found = self.tutti("checkpoint", "verify", run, code=1).stdout
                self.assertRegex(found, r"step-00000004: whole")
                self.assertRegex(found, rf"step-00000008: damaged: .*{name}")
                said = self.said(self.resume(run), run)
                self.assertRegex(said, rf"step-00000008 is refused: .*{name}")
                self.assertRegex(said, "resuming from .*step-00000004")
                self.assert_same_bits(run, "whole", what)
                self.tutti("checkpoint", "verify", run)

    def test_none_is_left(self):
        for step in (4, 8):
            flip(self.checkpoint("whole", step, self.SHARD), -900)
        self.assertIn("no whole checkpoint is left", self.resume("whole", code=1).stderr)
        for verb in ("eval", "generate"):
            self.assertIn("no whole checkpoint", self.tutti(verb, "whole", code=2).stderr)

    def test_half_written_ones_are_cleared(self):
        run = self.copy("whole", "run")
        shutil.rmtree(self.checkpoint(run, 8))
        shutil.copytree(self.checkpoint(run, 4), self.checkpoint(run, 8) + ".partial")
        os.remove(self.checkpoint(run, 8) + ".partial/manifest.json")
        self.assertIn("half written", self.said(self.resume(run), run))
        self.assertEqual(sorted(os.listdir(self.path(run, "checkpoints"))),
                         ["step-00000004", "step-00000008"])
        self.assert_same_bits(run, "whole")

    def test_of_another_model(self):
        self.train("other", "model.embed=16", "duration=12 steps")
        shutil.copytree(self.checkpoint("other", 12), self.checkpoint("whole", 12))
        got = self.resume("whole", "duration=16 steps", code=2)
        self.assertIn("another model", got.stderr)
        self.assertIn("step-00000012", got.stderr)


class Disks(RealRuns):
    def mount(self, name, options):
        os.makedirs(self.path(name))
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", self.path(name)],
                              capture_output=True, text=True)
        if done.returncode != 0:
            self.skipTest("needs a mount of its own: " + done.stderr.strip())
        self.addCleanup(subprocess.run, ["umount", "-l", self.path(name)])

    def test_a_full_disk(self):
        settings = ["checkpoint.every=2 steps", "checkpoint.keep_last=0", "duration=24 steps"]
        self.train("undisturbed", *settings)
        self.mount("small", "size=3m")
        for workers in ("1", "2"):
            with self.subTest(workers=workers):
                run = f"small/run{workers}"
                subprocess.run(["mount", "-o", "remount,size=3m", self.path("small")], check=True)
                got = self.train(run, *settings, flags=["--workers", workers], code=1)
                self.assertIn("No space left on device", got.stderr)
                self.assertIn("checkpoints/step-", got.stderr)
                self.assertGreater(self.newest(run), 0)
                self.assertLess(self.newest(run), 24)
                self.tutti("checkpoint", "verify", run)
                subprocess.run(["mount", "-o", "remount,size=64m", self.path("small")], check=True)
                self.resume(run)
                self.assert_same_bits(run, "undisturbed")
                shutil.rmtree(self.path(run))

    def test_nothing_may_be_written(self):
        self.mount("fixed", "ro")
        got = self.train("fixed/run", code=1)
        self.assertIn("fixed/run", got.stderr)
        self.assertIn("Read-only file system", got.stderr)
        self.environment["TUTTI_CACHE"] = self.path("fixed/cache")
        self.train("run")


if __name__ == "__main__":
    unittest.main()
