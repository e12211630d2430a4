"""Plain PyTorch over the backend "tutti": every operation beside gloo's, DDP and FSDP2, subgroups,
peers that die. helpers/backend_ranks.py is what the ranks do."""
import os
import re
import signal
import subprocess
import sys
import tempfile
import unittest

from helpers.runs import BIN, ROOT

PACKAGE = os.path.join(os.path.dirname(BIN), "python")
RANKS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "helpers", "backend_ranks.py")


@unittest.skipUnless(os.path.exists(os.path.join(PACKAGE, "tutti_backend")),
                     "this build has no Python backend")
class Backend(unittest.TestCase):
    def setUp(self):
        self.environment = {**os.environ, "PYTHONPATH": PACKAGE, "OMP_NUM_THREADS": "1"}

    def ranks(self, case, size, limit=240):
        """(exit code, output) of each rank."""
        with tempfile.TemporaryDirectory() as folder:
            words = [case, str(size), os.path.join(folder, "store")]
            started = [subprocess.Popen(
                [sys.executable, RANKS, words[0], str(rank), *words[1:]], text=True,
                env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
                for rank in range(size)]
            try:
                return [(process.communicate(timeout=limit)[0], process.returncode)[::-1]
                        for process in started]
            finally:
                for process in started:
                    process.kill()
                    process.wait()

    def all_well(self, case, size):
        outputs = self.ranks(case, size)
        for rank, (code, text) in enumerate(outputs):
            self.assertEqual(code, 0, f"{case}, rank {rank} of {size}:\n{text[-3000:]}")
        return outputs

    def test_operations(self):
        for size in (1, 2, 3):
            with self.subTest(size=size):
                self.all_well("operations", size)

    def test_subgroups(self):
        self.all_well("subgroups", 3)

    def test_ddp_and_fsdp_are_gloos(self):
        self.assertIn("fsdp differs by", self.all_well("training", 2)[0][1])

    def test_ddp_reduces_during_backward(self):
        self.all_well("overlap", 2)

    def test_a_killed_peer_is_named(self):
        for case, operation in (("killed_in_ddp", "all_reduce #"), ("killed_in_recv", "recv from")):
            with self.subTest(case):
                (code, text), (killed, _) = self.ranks(case, 2)
                self.assertLess(float(re.search("waited (.*) s", text)[1]), 20)
                self.assertEqual(killed, -signal.SIGKILL)
                self.assertNotEqual(code, 0)
                self.assertRegex(text, r"rank 1 \(process \d+\) has ended")
                self.assertIn(operation, text)

    def test_a_late_peer_is_named(self):
        code, text = self.ranks("late", 2)[0]
        self.assertNotEqual(code, 0)
        self.assertRegex(text, r"all_reduce #.*rank 1 did not come within 2 s")

    def test_the_example(self):
        done = subprocess.run(
            [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
             "examples/ddp_over_tutti.py"], cwd=ROOT, env=self.environment, text=True,
            capture_output=True, timeout=120)
        self.assertEqual(done.returncode, 0, done.stderr[-3000:])
        for rank in (0, 1):
            self.assertRegex(done.stdout, rf"rank {rank}: loss 0\.\d+")


if __name__ == "__main__":
    unittest.main()
