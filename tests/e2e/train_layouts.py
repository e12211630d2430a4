"""Layouts as a person trains them, with real processes: the same bits for sharded and pipelined
runs, near ones for tensor and context ranks; resumed under another layout; `tutti parity`."""
import unittest

from helpers.runs import RealRuns

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
                         "uncut-norm", code=1)
        self.assertIn("norm", bad.stdout)

    def test_layout_show(self):
        told = self.tutti("layout", "show", "tiny.yaml", *self.sets(*MESH, P + "tensor=2",
                                                                    P + "workers=2")).stdout
        self.assertRegex(told, r"layers\.\*\.self_attn\.o_proj\.weight +\[32 x 32\] +Shard\(1\) on "
                               r"tensor: \[32 x 16\] +x 2")
        self.assertRegex(told, r"o_proj\.weight +Partial -> Shard\(0\) +reduce-scatter / all-gather")
        alone = self.tutti("layout", "show", "tiny.yaml").stdout
        self.assertIn("no conversion within the model", alone)

    @staticmethod
    def sets(*settings):
        return [word for setting in settings for word in ("--set", setting)]


if __name__ == "__main__":
    unittest.main()
