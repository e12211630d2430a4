"""tutti bench comm: real processes, a few small sizes. TUTTI_BIN names the folder of the executables."""
import json
import unittest

from helpers.runs import RealRuns, meeting_places

OPERATIONS = ["all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "send_recv", "barrier"]


def factor(operation, ranks):
    if operation in ("broadcast", "send_recv"):
        return 1
    return {"all_reduce": 2, "barrier": 0}.get(operation, 1) * (ranks - 1) / ranks


class BenchComm(RealRuns):
    def profile(self, ranks, *more):
        got = self.tutti("bench", "comm", "--ranks", str(ranks), "--seconds", "0.02", "--json", *more)
        profile = json.loads(got.stdout)
        self.assertEqual((profile["format"], profile["version"]), ("tutti comm profile", 1))
        self.assertEqual((profile["ranks"], profile["type"]), (ranks, "F32"))
        self.assertGreaterEqual(profile["cores"], 1)
        return profile

    def check_table(self, table, ranks, sizes):
        operation = table["operation"]
        points = table["points"]
        self.assertEqual([point["bytes"] for point in points], [0] if operation == "barrier" else sizes, table)
        self.assertGreaterEqual(min(table["alpha"], table["beta"]), 0, table)
        self.assertGreater(table["alpha"] + table["beta"], 0, table)
        for point in points:
            self.assertGreater(point["seconds"], 0, table)
            self.assertLess(point["seconds"], 10, table)
            self.assertGreaterEqual(point["samples"], 5)
            rate = point["bytes"] / point["seconds"]
            self.assertAlmostEqual(point["algorithm_bandwidth"] / max(rate, 1), rate / max(rate, 1), places=6)
            self.assertAlmostEqual(point["bus_bandwidth"] / max(rate, 1),
                                   factor(operation, ranks) * rate / max(rate, 1), places=6)

    def test_every_operation_of_two_and_three_ranks(self):
        before = meeting_places()
        for ranks in (2, 3):
            profile = self.profile(ranks, "--sizes", "1kb,4kb,1mb", "--transports", "shm,tcp,gloo")
            tables = {(t["transport"], t["operation"], t["buffers"]): t for t in profile["tables"]}
            self.assertEqual(len(tables), len(profile["tables"]))
            expected = {(transport, operation, buffers) for operation in OPERATIONS
                        for transport, buffers in (("shm", "shared"), ("shm", "ordinary"), ("tcp", "ordinary"), ("gloo", "ordinary"))}
            self.assertEqual(set(tables), expected - {("shm", "barrier", "ordinary")})
            for table in tables.values():
                self.check_table(table, ranks, [1024, 4096, 1 << 20])
            # Of a busy machine only what is far apart is sure: a thousand times the bytes.
            first, *_, last = tables["shm", "all_reduce", "ordinary"]["points"]
            self.assertGreater(last["seconds"], first["seconds"])
            memory = profile["memory"]
            self.assertEqual(memory["bytes"], 1 << 20)
            self.assertEqual(memory["limit"], max(memory["copy"], memory["triad"], memory["update"]))
            self.assertGreater(memory["all_reduce_share"], 0)
        self.assertLessEqual(meeting_places(), before)

    def test_sizes_that_ranks_do_not_divide(self):
        profile = self.profile(3, "--sizes", "4,20,1028", "--transports", "shm")
        for table in profile["tables"]:
            self.check_table(table, 3, [4, 20, 1028])

    def test_a_table_for_a_person_and_a_file_for_a_program(self):
        got = self.tutti("bench", "comm", "--seconds", "0.01", "--sizes", "1kb..16kb", "--transports", "shm",
                         "--operations", "all_reduce,barrier", "--out", "profile.json")
        for text in ("2 ranks", "all_reduce over shm, shared buffers", "1.00 KiB", "16.0 KiB", "bus GB/s",
                     "barrier over shm", "copy", "of the highest"):
            self.assertIn(text, got.stdout)
        profile = json.loads(self.read("profile.json"))
        self.assertEqual([t["operation"] for t in profile["tables"]], ["all_reduce", "all_reduce", "barrier"])
        self.assertEqual([p["bytes"] for p in profile["tables"][0]["points"]], [1024, 4096, 16384])

    def test_a_profile_is_read(self):
        self.tutti("bench", "comm", "--seconds", "0.01", "--sizes", "1kb..64kb", "--transports", "shm", "--out", "costs.json")
        two = ["--set", "parallel.workers=2"]
        show = self.tutti("layout", "show", "tiny.yaml", *two, "--profile", "costs.json").stdout
        self.assertRegex(show, r"tree_all_reduce +\d+ +[\d.]+ \w+ +[\d.]+ [um]s\n")
        self.assertRegex(show, r"by the profile \(shm\) the slowest rank's take [\d.]+ [um]s a step")
        self.assertNotIn("by the profile", self.tutti("layout", "show", "tiny.yaml", *two).stdout)
        self.train("run", "parallel.workers=2")
        trace = self.tutti("trace", "run", "--profile", "costs.json").stdout
        self.assertRegex(trace, r"attainable +share")
        self.assertRegex(trace, r"tree_all_reduce .*/s +[\d.]+ \w+/s +[\d.]+%")
        self.assertRegex(trace, r"moved data for [\d.]+%, hidden or not, and waited for later ranks for [\d.]+%")
        for words, said in ((["--profile", "none.json"], "none.json"), (["--profile", "tiny.yaml"], "is no profile"),
                            (["--profile", "costs.json", "--transport", "tcp"], "it has shm")):
            for verb in (["layout", "show", "tiny.yaml", *two], ["trace", "run"]):
                self.assertIn(said, self.tutti(*verb, *words, code=1 if "none" in said else 2).stderr)
        self.assertIn("--profile", self.tutti("trace", "run", "--transport", "shm", code=2).stderr)

    def test_mistakes_are_named_all_at_once(self):
        got = self.tutti("bench", "comm", "--ranks", "99", "--transports", "shmm", "--operations", "all_redduce",
                         "--sizes", "1kb..3", "--seconds", "0", "--out", "nowhere/x.json", code=2)
        for text in ("--ranks = 99: must be 2 to 64", "--transports = shmm", "did you mean shm?",
                     "--operations = all_redduce", "did you mean all_reduce?", "--sizes = 3", "write like 1kb..64mb",
                     "--seconds = 0", "--out = nowhere/x.json: lies in no folder; make it first"):
            self.assertIn(text, got.stderr)
        self.assertEqual(got.stdout, "")
        for sizes, text in (("", "--sizes"), ("2gb", "--sizes = 2gb"), ("6", "--sizes = 6: must be whole floats"),
                            ("4kb..1kb", "--sizes = 4kb..1kb: ends below its beginning"), ("1kb,,", "--sizes")):
            got = self.tutti("bench", "comm", "--sizes", sizes, code=2)
            self.assertIn(text, got.stderr)


if __name__ == "__main__":
    unittest.main()
