"""A run on several hosts: network namespaces, each with its own address, that share the run's folder."""
import json
import os
import re
import signal
import subprocess
import sys
import unittest

from helpers.runs import BIN, ROOT, RealRuns, children, processes_about, wait_for

sys.path.insert(0, os.path.join(ROOT, "tools"))
from wire import ADDRESSES, Wire  # noqa: E402


FOUR = ["parallel.workers=4", "batch.global=16"]


class Hosts(RealRuns):
    @classmethod
    def setUpClass(cls):
        cls.wire = Wire()
        try:
            cls.wire.__enter__()
        except RuntimeError as error:
            if os.geteuid() == 0 and "install" in str(error):
                raise
            raise unittest.SkipTest(f"no network namespaces here: {error}")

    @classmethod
    def tearDownClass(cls):
        cls.wire.__exit__()

    def start_on(self, host, *args):
        process = self.wire.start(host, [f"{BIN}/tutti", *args], cwd=self.folder, env=self.environment, text=True,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(self.close, process)
        return process

    @staticmethod
    def close(process):
        if process.poll() is None:
            process.terminate()
            process.communicate(timeout=30)
        process.stdout.close()
        process.stderr.close()

    def start_both(self, first, run, *settings):
        """The first host's command and `tutti join` on the other."""
        words = [word for setting in settings for word in ("--set", setting)]
        return (self.start_on(0, *first, *words, "--hosts", "2", "--address", ADDRESSES[0]),
                self.start_on(1, "join", run, "--host", "1", "--address", ADDRESSES[1]))

    def end_all(self, processes, code=0):
        texts = [process.communicate(timeout=120) for process in processes]
        for process, (out, errors) in zip(processes, texts):
            self.assertEqual(process.returncode, code, (process.args, out, errors))
        return texts

    def everything(self, run):
        return [name for _, folders, names in os.walk(self.path(run)) for name in folders + names]

    def steps_done(self, run):
        """How many rank 0 has done."""
        records = self.path(run, "events", "rank-000.jsonl")
        return self.read(records).count('"step":') if os.path.exists(records) else 0

    def transport(self, run):
        for line in self.read(run, "events", "rank-000.jsonl").splitlines():
            found = re.search(r'"transport": ?"([^"]*)"', line)
            if found:
                return found.group(1)
        return None

    def test_two_hosts_train_as_one_and_go_on(self):
        self.train("one", *FOUR)
        self.train("cut", *FOUR, "schedule.kind=constant")
        for name, settings, transport in [("levels", [], "shm+tcp"), ("flat", ["parallel.transport=tcp"], "tcp"),
                                          ("sealed", ["parallel.encrypt=on"], "shm+tcp"),
                                          ("sharded", ["parallel.engine=sharded", "parallel.zero=3"], "shm+tcp"),
                                          ("pipeline", ["parallel.engine=mesh", "parallel.pipeline=2"], "shm+tcp")]:
            with self.subTest(name):
                (out, _), (_, said) = self.end_all(self.start_both(["train", "tiny.yaml", "--out", name], name, *FOUR,
                                                               *settings))
                self.assertIn("ranks 2 to 3 of 4", said)
                self.assertNotIn("warning", said)
                self.assertEqual(self.transport(name), transport)
                self.assert_same_bits("one", name, name)
                self.assertEqual([file for file in os.listdir(self.path(name)) if "meeting" in file or "hosts" in file],
                                 [])
        steady = "schedule.kind=constant"
        self.end_all(self.start_both(["train", "tiny.yaml", "--out", "half"], "half", *FOUR, steady, "duration=4 steps"))
        self.end_all(self.start_both(["resume", "half"], "half", "duration=8 steps"))
        self.assert_same_bits("cut", "half")

    def test_hosts_see_the_folder_under_other_paths_and_each_joins_once(self):
        other = self.path("elsewhere")
        os.symlink(self.folder, other)
        words = [word for setting in [*FOUR, "duration=300 steps"] for word in ("--set", setting)]
        first = self.start_on(0, "train", "tiny.yaml", "--out", "other", *words, "--hosts", "2",
                              "--address", ADDRESSES[0])
        join = ["join", f"{other}/other", "--host", "1", "--address", ADDRESSES[1]]
        second = self.start_on(1, *join)
        self.assertTrue(wait_for(lambda: self.steps_done("other") > 2, 60))
        self.assertEqual([name for name in self.everything("other") if name.endswith("store")], [])
        third = self.start_on(1, *join)
        self.assertIn("--host = 1: has joined already", third.communicate(timeout=60)[1])
        self.assertEqual(third.returncode, 2)
        self.end_all([first, second])

    def test_a_lost_worker_ends_both_hosts_at_once(self):
        processes = self.start_both(["train", "tiny.yaml", "--out", "long"], "long", *FOUR,
                                    "duration=1000000 steps")
        self.assertTrue(wait_for(lambda: os.path.exists(self.path("long", "events", "rank-000.jsonl")) and
                                 '"step":3,' in self.read("long", "events", "rank-000.jsonl"), 60))
        victim = children(processes[1].pid)[1]
        os.kill(victim, signal.SIGKILL)
        (_, first), (_, second) = self.end_all(processes, code=1)
        self.assertIn("rank 3: killed by signal 9", second)
        self.assertRegex(first, r"rank [01] \|")
        self.assertEqual(processes_about(self.folder), [])

    def test_ctrl_c_on_the_second_host_saves_and_ends_both(self):
        processes = self.start_both(["train", "tiny.yaml", "--out", "long"], "long", *FOUR,
                                    "duration=1000000 steps")
        self.assertTrue(wait_for(lambda: os.path.exists(self.path("long", "events", "rank-000.jsonl")) and
                                 '"step":3,' in self.read("long", "events", "rank-000.jsonl"), 60))
        processes[1].send_signal(signal.SIGINT)
        texts = [process.communicate(timeout=120) for process in processes]
        self.assertEqual([process.returncode for process in processes], [130, 130], texts)
        self.assertTrue(os.listdir(self.path("long", "checkpoints")))


class BadInput(RealRuns):
    def test_what_is_missing_is_named(self):
        alone = self.tutti("train", "tiny.yaml", "--out", "x", "--hosts", "2", "--workers", "2", code=2)
        self.assertIn("--address", alone.stderr)
        uneven = self.tutti("train", "tiny.yaml", "--out", "x", "--hosts", "3", "--workers", "2", "--address", "::1",
                            code=2)
        self.assertIn("must divide parallel.workers = 2", uneven.stderr)
        memory = self.tutti("train", "tiny.yaml", "--out", "x", "--hosts", "2", "--workers", "2", "--address", "::1",
                            "--set", "parallel.transport=shm", code=2)
        self.assertIn("parallel.transport = shm", memory.stderr)
        self.assertFalse(os.path.exists(self.path("x")))
        self.tutti("train", "tiny.yaml", "--out", "x", "--address", "::1", code=2)

    def test_a_run_that_nobody_starts_or_whose_launcher_was_killed_is_not_joined(self):
        join = ["join", "x", "--host", "1", "--address", "127.0.0.1", "--timeout", "2"]
        self.assertIn("no host has started the run", self.tutti(*join, code=1).stderr)
        self.write("x/hosts.json", json.dumps({"folder": "meeting-1", "hosts": 2, "workers": 4, "threads": 1,
                                               "resume": False, "beats": 7}))
        self.assertIn("no host has started the run", self.tutti(*join, code=1).stderr)
        self.write("x/hosts.json", "{")
        self.assertIn("no host has started the run", self.tutti(*join, code=1).stderr)

    def test_gloo_is_not_encrypted(self):
        self.write("two.yaml", self.read("tiny.yaml").replace("threads: 1", "threads: 1, workers: 2, transport: gloo, "
                                                              "encrypt: on"))
        self.assertIn("parallel.encrypt", self.tutti("recipe", "check", "two.yaml", code=2).stderr)


if __name__ == "__main__":
    unittest.main()
