"""The command line as a person meets it. TUTTI_BIN names the folder of the executables.

A run is exercised with a stand-in for tutti-worker: a copy of `tutti` in a folder of its own, with a
shell script beside it, so that workers fail, hang and die exactly as each test says.
"""
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

from helpers.runs import ROOT, wait_for

BIN = os.environ.get("TUTTI_BIN", "build/release/bin")
VERBS = [["train"], ["resume"], ["eval"], ["generate"], ["export"], ["tokenize"],
         ["tokenizer", "train"], ["tokenizer", "encode"], ["tokenizer", "decode"],
         ["recipe", "check"], ["recipe", "show"], ["recipe", "schema"], ["recipe", "reference"],
         ["checkpoint", "list"], ["checkpoint", "show"], ["checkpoint", "verify"], ["doctor"], ["bench", "comm"],
         ["version"]]
NEEDS_A_RUN = {"train", "resume", "eval", "generate", "export", "checkpoint"}


def tutti(*args, folder=ROOT, program=None, **more):
    return subprocess.run([program or os.path.join(os.path.abspath(BIN), "tutti"), *args], cwd=folder,
                          capture_output=True, text=True, timeout=60, **more)


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


class Words(unittest.TestCase):
    def test_version_is_quick(self):
        times = []
        for _ in range(10):
            start = time.perf_counter()
            self.assertRegex(tutti("version").stdout, r"^tutti \d+\.\d+\.\d+\n$")
            times.append(time.perf_counter() - start)
        self.assertLess(min(times), 0.02)

    def test_unknown_words_name_the_nearest(self):
        for args, hint in [(["trian"], "did you mean train?"),
                           (["train", "x.yaml", "--worker", "2"], "did you mean --workers?"),
                           (["tokenizer", "encoed"], "did you mean encode?"),
                           (["recipe", "chekc", "x"], "did you mean check?"),
                           (["train"], "RECIPE is required"),
                           (["train", "x.yaml", "--json", "--quiet"], "--json"),
                           (["generate", "/no/such"], "does not exist"),
                           (["version", "now"], "unexpected now")]:
            got = tutti(*args)
            self.assertEqual(got.returncode, 2, (args, got))
            self.assertIn(hint, got.stderr, args)
            self.assertEqual(got.stdout, "")

    def test_no_verb_tells_all(self):
        got = tutti()
        self.assertEqual(got.returncode, 2)
        for verb in VERBS:
            self.assertIn(verb[0], got.stderr)

    def test_each_help_has_an_example_that_works(self):
        with tempfile.TemporaryDirectory() as folder:
            shutil.copy(os.path.join(ROOT, "README.md") if os.path.exists(f"{ROOT}/README.md")
                        else __file__, f"{folder}/README.md")
            if os.path.exists(f"{ROOT}/recipes"):
                os.symlink(f"{ROOT}/recipes", f"{folder}/recipes")
            path = os.path.abspath(BIN) + ":" + os.environ["PATH"]
            for verb in VERBS:
                help_text = tutti(*verb, "--help")
                self.assertEqual(help_text.returncode, 0, verb)
                found = re.search(r"Example:\s+(.*tutti " + " ".join(verb) + r"\b.*)", help_text.stdout)
                self.assertTrue(found, (verb, help_text.stdout))
                if verb[0] in NEEDS_A_RUN:
                    continue
                ran = subprocess.run(found[1], shell=True, cwd=folder, capture_output=True, text=True,
                                     timeout=60, env={**os.environ, "PATH": path})
                allowed = (0, 1) if verb == ["doctor"] else (0,)
                self.assertIn(ran.returncode, allowed, (found[1], ran.stderr))
                self.assertNotEqual(ran.stdout, "", found[1])

    def test_tokenizer(self):
        got = tutti("tokenizer", "encode", "--tokenizer", "bytes", "--json", input="hé")
        self.assertEqual(json.loads(got.stdout), [104, 195, 169])
        back = tutti("tokenizer", "decode", "--tokenizer", "bytes", input=got.stdout)
        self.assertEqual(back.stdout, "hé")
        bad = tutti("tokenizer", "decode", "--tokenizer", "bytes", input="1 two")
        self.assertEqual((bad.returncode, "two" in bad.stderr), (2, True))

    def test_output_that_cannot_be_written(self):
        program = os.path.join(os.path.abspath(BIN), "tutti")
        for verb in ("version", "recipe schema"):
            full = subprocess.run(f"{program} {verb} > /dev/full", shell=True, capture_output=True,
                                  text=True, timeout=60)
            self.assertEqual(full.returncode, 1, verb)
            self.assertIn("cannot write to standard output", full.stderr)
            left = subprocess.run(f"{program} {verb} | true; exit ${{PIPESTATUS[0]}}", shell=True,
                                  executable="/bin/bash", capture_output=True, text=True, timeout=60)
            self.assertEqual(left.stderr, "")

    def test_recipes_that_are_none(self):
        for name in ("/nowhere.yaml", ROOT, "/dev/zero"):
            got = tutti("recipe", "check", name)
            self.assertEqual((got.returncode, "there is no recipe" in got.stderr), (2, True), got)
        self.assertIn("it is a folder", tutti("recipe", "check", ROOT).stderr)

    def test_doctor(self):
        found = json.loads(tutti("doctor", "--json").stdout)
        subjects = {finding["subject"] for finding in found}
        self.assertLessEqual({"cpu", "cores", "memory", "disk", "libtorch", "ports"}, subjects)
        for finding in found:
            self.assertEqual(finding["remedy"] == "", finding["grade"] == "ok", finding)


RECIPE = """\
name: tiny
duration: 5 steps
schedule: {warmup: 0}
data:
  train: [text.txt]
  validation_fraction: 0.5
"""


class Runs(unittest.TestCase):
    def setUp(self):
        self.kept = tempfile.TemporaryDirectory()
        self.folder = self.kept.name
        self.program = f"{self.folder}/bin/tutti"
        os.mkdir(f"{self.folder}/bin")
        shutil.copy(os.path.join(BIN, "tutti"), self.program)
        with open(f"{self.folder}/tiny.yaml", "w") as recipe:
            recipe.write(RECIPE)
        with open(f"{self.folder}/text.txt", "w") as text:
            text.write("to be or not to be, that is the question\n" * 200)

    def tearDown(self):
        self.kept.cleanup()

    def worker(self, script):
        with open(f"{self.folder}/bin/tutti-worker", "w") as worker:
            worker.write("#!/bin/sh\n" + script)
        os.chmod(f"{self.folder}/bin/tutti-worker", 0o755)

    def train(self, *more, workers=2):
        return tutti("train", "tiny.yaml", "--out", "run", "--workers", str(workers), *more,
                     folder=self.folder, program=self.program)

    def test_a_layout_that_cannot_be_is_refused_before_anything_starts(self):
        self.worker("touch started\n")
        with open(f"{self.folder}/tiny.yaml", "a") as recipe:
            recipe.write("batch: {micro: 3}\nparallel:\n  tensor: 2\n")
        check = tutti("recipe", "check", "tiny.yaml", folder=self.folder, program=self.program)
        for got in (check, self.train(workers=2)):
            self.assertEqual(got.returncode, 2, got)
            self.assertIn("tiny.yaml:7: batch.micro = 3: must divide", got.stderr)
            self.assertIn("tiny.yaml:9: parallel.tensor = 2: must be 1 with", got.stderr)
            self.assertIn("nearest are parallel.tensor = 1, or parallel.engine = mesh", got.stderr)
        self.assertFalse(os.path.exists(f"{self.folder}/started"))
        self.assertFalse(os.path.exists(f"{self.folder}/run"))

    def start(self, *args):
        process = subprocess.Popen([self.program, *args], cwd=self.folder, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.stderr.close)
        return process

    def start_and_wait_for_pids(self, *args):
        process = self.start(*args)
        self.assertTrue(wait_for(lambda: all(
            os.path.exists(f"{self.folder}/pid{r}") and os.path.getsize(f"{self.folder}/pid{r}")
            for r in (0, 1)), 10), "workers did not start")
        return process, [int(open(f"{self.folder}/pid{r}").read()) for r in (0, 1)]

    POLITE = ("trap 'exit 130' TERM; echo $$ > pid$TUTTI_RANK; i=0; "
              "while [ $i -lt 1500 ]; do i=$((i+1)); sleep 0.02; done\n")
    TRAIN = ["train", "tiny.yaml", "--out", "run", "--workers", "2"]

    def test_files_and_json(self):
        self.worker("echo $@ rank $TUTTI_RANK of $TUTTI_WORLD_SIZE\n")
        got = self.train("--json", "--set", "seed=7")
        self.assertEqual(got.returncode, 0, got.stderr)
        summary = json.loads(got.stdout.splitlines()[-1])
        for key in ("steps", "loss", "validation_loss", "tokens_per_second", "mfu", "seconds",
                    "workers", "exit"):
            self.assertIn(key, summary)
        self.assertEqual((summary["workers"], summary["exit"]), (2, 0))
        with open(f"{self.folder}/run/summary.json") as file:
            self.assertEqual(json.load(file), summary)
        with open(f"{self.folder}/run/recipe.yaml") as file:
            self.assertIn("seed: 7", file.read())
        for rank in (0, 1):
            with open(f"{self.folder}/run/logs/rank-00{rank}.log") as log:
                self.assertEqual(log.read().split(" --run ")[0], "train")
        self.assertTrue(os.path.exists(f"{self.folder}/run/report.html"))

    def test_a_failing_worker(self):
        self.worker("[ $TUTTI_RANK = 1 ] && { echo no room; exit 70; }\n" + self.POLITE)
        got = self.train()
        self.assertEqual(got.returncode, 70)
        self.assertIn("rank 1 | no room", got.stderr)

    def test_mistakes_are_told_before_anything_starts(self):
        self.worker("touch started\n")
        got = self.train("--set", "optimizer.lrr=1", "--set", "batch.micro=-1")
        self.assertEqual(got.returncode, 2)
        self.assertIn("optimizer.lrr", got.stderr)
        self.assertIn("batch.micro", got.stderr)
        self.assertFalse(os.path.exists(f"{self.folder}/started"))
        self.assertFalse(os.path.exists(f"{self.folder}/run"))

    def test_sigkill_of_a_worker(self):
        self.worker(self.POLITE)
        process, pids = self.start_and_wait_for_pids(*self.TRAIN)
        os.kill(pids[1], signal.SIGKILL)
        _, errors = process.communicate(timeout=30)
        self.assertEqual(process.returncode, 1)
        self.assertIn("rank 1: killed by signal 9", errors)
        self.assertFalse(any(map(alive, pids)))

    def test_sigkill_of_the_launcher(self):
        self.worker(self.POLITE)
        process, pids = self.start_and_wait_for_pids(*self.TRAIN)
        process.kill()
        process.wait(30)
        self.assertTrue(wait_for(lambda: not any(map(alive, pids)), 10))

    def test_signals_end_with_130(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            shutil.rmtree(f"{self.folder}/run", ignore_errors=True)
            for rank in (0, 1):
                if os.path.exists(f"{self.folder}/pid{rank}"):
                    os.remove(f"{self.folder}/pid{rank}")
            self.worker(self.POLITE)
            process, pids = self.start_and_wait_for_pids(*self.TRAIN)
            process.send_signal(number)
            process.communicate(timeout=30)
            self.assertEqual(process.returncode, 130)
            self.assertFalse(any(map(alive, pids)))

    def test_two_runs_in_one_folder(self):
        self.worker(self.POLITE)
        first, pids = self.start_and_wait_for_pids(*self.TRAIN)
        second = self.train()
        self.assertIn(second.returncode, (1, 2))
        self.assertIn("run", second.stderr)
        self.assertTrue(all(map(alive, pids)), "the second launch must not harm the first")
        first.send_signal(signal.SIGTERM)
        first.communicate(timeout=30)
        self.assertEqual(first.returncode, 130)

    def test_no_write_permission(self):
        self.worker("exit 0\n")
        got = tutti("train", "tiny.yaml", "--out", "/proc/run", folder=self.folder,
                    program=self.program)
        self.assertIn(got.returncode, (1, 2))
        self.assertIn("/proc/run", got.stderr)

    def test_worker_missing(self):
        got = self.train()
        self.assertEqual(got.returncode, 1)
        self.assertIn("./dev build", got.stderr)
        self.assertFalse(os.path.exists(f"{self.folder}/run"))

    def test_resume(self):
        self.worker("echo $@\n")
        self.assertEqual(self.train().returncode, 0)
        got = tutti("resume", "run", "--workers", "1", folder=self.folder, program=self.program)
        self.assertEqual(got.returncode, 0, got.stderr)
        with open(f"{self.folder}/run/logs/rank-000.log") as log:
            self.assertIn("--resume", log.read())
        wrong = tutti("resume", "run", "--set", "model.layers=9", folder=self.folder,
                      program=self.program)
        self.assertEqual(wrong.returncode, 2)
        self.assertIn("model.layers", wrong.stderr)

    def test_tensor_verbs_become_the_worker(self):
        self.worker('for a in "$@"; do echo "[$a]"; done; exit 3\n')
        os.mkdir(f"{self.folder}/run")
        got = tutti("generate", "run", "--prompt", "a  'b", "--tokens", "5", "--seed", "0",
                    "--top-p", "0.5", folder=self.folder, program=self.program)
        self.assertEqual(got.returncode, 3)
        self.assertEqual(got.stdout.split("\n")[0], "[generate]")
        for part in ("[run]", "[--prompt=a  'b]", "[--tokens=5]", "[--seed=0]", "[--top-p=0.5]"):
            self.assertIn(part, got.stdout)


if __name__ == "__main__":
    unittest.main()
