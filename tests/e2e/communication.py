"""What a run writes down about its operations, and what `tutti trace` and `tutti doctor run` make of
it: a run that is well, hangs, has died."""
import json
import os
import signal
import subprocess
import unittest

from helpers.runs import BIN, RealRuns, children, rank_of, wait_for


class Communication(RealRuns):
    ENDLESS = ("duration=100000 steps", "checkpoint.every=0 steps", "evaluation.every=100000 steps")

    def start_endless(self, *settings):
        process = self.start(*self.words("train", ["tiny.yaml", "--out", "run"],
                                         [*self.ENDLESS, "parallel.workers=3", *settings]))
        self.assertTrue(wait_for(self.has_made_steps), self.read("output.txt"))
        return process, {rank_of(pid): pid for pid in children(process.pid)}

    def has_made_steps(self):
        try:
            with open(self.path("run/events/rank-002.flight"), "rb") as file:
                return b"step 20" in file.read()
        except FileNotFoundError:
            return False

    def doctor(self, code, *more):
        return self.tutti("doctor", "run", "run", *more, code=code).stdout

    def test_a_stopped_rank_is_named_and_the_run_ends_in_time(self):
        process, pids = self.start_endless("parallel.timeout=4")
        self.assertIn("nobody waits", self.doctor(0))
        os.kill(pids[1], signal.SIGSTOP)
        self.addCleanup(lambda: os.path.exists(f"/proc/{pids[1]}") and os.kill(pids[1], signal.SIGKILL))
        self.assertTrue(wait_for(lambda: "rank 1 did not come" in subprocess.run(
            [f"{BIN}/tutti", "doctor", "run", "run", "--patience", "1"], cwd=self.folder,
            capture_output=True, text=True).stdout, 10))
        said = self.doctor(1, "--patience", "1")
        self.assertRegex(said, rf"rank 1 \(process {pids[1]}\) is STOPPED\n  last: ")
        self.assertRegex(said, r"rank [02] \(process \d+\) runs\n  waits \S+ in [\w ,()]+: \w+ #\d+ .*"
                               r"asked for at \w+\.cc:\d+; rank 1 did not come")
        self.assertIn(f"kill -CONT {pids[1]}", said)
        self.assertEqual(process.wait(30), 1)
        self.assertRegex(self.read("output.txt"),
                         r"group '[\w ,()]+', rank [02] of 3, \w+ #\d+.*rank 1 did not come within 4 s "
                         r"\(recorded as #\d+, asked for at \w+\.cc:\d+\)")
        self.assertRegex(self.doctor(1), r"gave up after .*; rank 1 did not come\n[^$]*look at rank 1: it has ended with an error")

    def test_a_killed_rank_is_named(self):
        process, pids = self.start_endless()
        os.kill(pids[2], signal.SIGKILL)
        self.assertEqual(process.wait(20), 1)
        said = self.doctor(1)
        self.assertRegex(said, r"look at rank 2: it has ENDED without a word")
        self.assertRegex(said, r"gave up after .*; rank 2 did not come")

    def test_trace_of_a_run(self):
        self.train("run", "parallel.workers=2")
        self.assertIn("nobody waits", self.doctor(0))
        said = self.tutti("trace", "run", "--steps", "2:5").stdout
        self.assertIn("steps 2 to 5 of 2 ranks", said)
        self.assertRegex(said, r"\w+ +tree_all_reduce +\d+ ")
        self.assertIn("<table>", self.read("run/trace.html"))
        events = json.loads(self.read("run/trace.json"))["traceEvents"]
        steps = [e["name"] for e in events if e["name"].startswith("step ")]
        self.assertEqual(steps, ["step 2", "step 3", "step 4", "step 5"] * 2)
        for e in events:
            if e["ph"] == "X":
                self.assertGreaterEqual(e["dur"], 0)
                self.assertLessEqual({"pid", "tid", "ts", "args"}, e.keys())
        calls = [[(e["name"], e["args"]["sequence"], e["args"]["bytes"]) for e in events
                  if e.get("cat") == "communication" and e["pid"] == rank] for rank in (0, 1)]
        self.assertEqual(*calls)
        self.assertGreater(len(calls[0]), 7)
        whole = json.loads(self.tutti_trace_whole())["traceEvents"]
        self.assertGreater(len(whole), len(events))

    def tutti_trace_whole(self):
        self.tutti("trace", "run", "--out", "all.json")
        return self.read("all.json")

    def test_what_layout_show_foretells_is_what_is_recorded(self):
        for number, settings in enumerate((["parallel.workers=2"],
                         ["parallel.workers=2", "parallel.engine=sharded", "parallel.zero=3"],
                         ["parallel.workers=4", "parallel.engine=mesh", "parallel.tensor=2",
                          "parallel.zero=1"],
                         ["parallel.workers=2", "parallel.engine=mesh", "parallel.pipeline=2"],
                         ["parallel.workers=2", "parallel.engine=mesh", "parallel.context=2"])):
            with self.subTest(settings):
                foretold = self.foretold(settings)
                run = f"run{number}"
                self.train(run, *settings)
                self.tutti("trace", run, "--steps", "4")
                self.assertEqual(self.recorded(run), foretold)

    def foretold(self, settings):
        """group, operation -> calls of the rank with the most."""
        said = self.tutti("layout", "show", "tiny.yaml",
                          *[word for s in settings for word in ("--set", s)]).stdout
        table = said.split("collectives of a step")[1].split("\n\n")[0].splitlines()[1:]
        return {tuple(line.split()[:2]): int(line.split()[2]) for line in table if line.strip()}

    def recorded(self, run):
        events = json.loads(self.read(run, "trace.json"))["traceEvents"]
        names = {(e["pid"], e["tid"]): e["args"]["name"].split(":")[0].split(" (")[0] for e in events
                 if e["name"] == "thread_name"}
        counts = {}
        for e in events:
            if e.get("cat") == "communication":
                key = (names[e["pid"], e["tid"]], e["name"])
                counts.setdefault(key, {}).setdefault(e["pid"], 0)
                counts[key][e["pid"]] += 1
        return {key: max(ranks.values()) for key, ranks in counts.items()}

    def test_bad_input(self):
        self.assertIn("nowhere: does not exist", self.tutti("trace", "nowhere", code=2).stderr)
        self.train("run")  # one worker has nobody to talk to
        self.assertIn("has no records of operations", self.tutti("trace", "run", code=2).stderr)
        self.train("two", "parallel.workers=2")
        for steps in ("x", "5:3", "0:1"):
            self.assertIn(f"--steps = {steps}", self.tutti("trace", "two", "--steps", steps, code=2).stderr)
        self.assertIn("no step is whole", self.tutti("trace", "two", "--steps", "90:95").stdout)
        self.tutti("train", "tiny.yaml", "--out", "four", "--workers", "3")
        self.resume("four", "duration=12 steps", "parallel.workers=2")  # leaves rank 2's file behind
        self.assertIn("steps 9 to 12 of 2 ranks", self.tutti("trace", "four").stdout)
        with open(self.path("four/events/rank-000.flight"), "r+b") as file:
            file.seek(12)
            file.write(b"\xff\xff\xff\x7f")  # a world of 2147483647 ranks
        damaged = self.tutti("doctor", "run", "four", timeout=20, code=1)
        self.assertIn("rank 0 of 2147483647", damaged.stderr)
        self.assertIn("rank 0 left no record that can be read here", damaged.stdout)
        self.resume("four", "duration=14 steps", "parallel.workers=1")
        self.assertIn("has no records", self.tutti("doctor", "run", "four", code=2).stderr)
        self.write("two/events/rank-001.flight", "something else")
        foreign = self.tutti("doctor", "run", "two", code=1)
        self.assertIn("rank-001.flight: is no flight recorder's file", foreign.stderr)
        self.assertIn("rank 1 left no record that can be read here", foreign.stdout)


if __name__ == "__main__":
    unittest.main()
