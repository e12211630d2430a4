"""Mixtures of experts as a person trains them: the same bits in every layout, the routers' biases
kept in checkpoints, in what is made of them, and in a folder of Hugging Face."""
import json
import unittest

from helpers.runs import RealRuns

MOE = "model.moe."
ROUTED = [MOE + "experts=6", MOE + "expert_mlp=24", MOE + "z_loss=0.001"]
DOTS = [*ROUTED, MOE + "router=sigmoid", MOE + "balance_bias_rate=0.05", MOE + "shared_experts=1",
        MOE + "dense_layers=1", "model.qk_norm=on"]
LONG = ["schedule.kind=constant", "duration=24 steps"]


class Mixtures(RealRuns):
    KINDS = {
        "dots": DOTS,
        "mixtral, balanced by a loss": [*ROUTED, MOE + "aux_loss=0.01", MOE + "aux_scope=global"],
        "with capacity, recomputed": [*ROUTED, MOE + "aux_loss=0.01", MOE + "capacity_factor=1.0",
                                      "recompute=full"],
    }

    def test_each_learns_the_same_on_one_and_two_and_resumed(self):
        for number, (what, settings) in enumerate(self.KINDS.items()):
            with self.subTest(what):
                one, two, cut = (f"{number}-{name}" for name in ("one", "two", "cut"))
                self.train(one, *settings, *LONG)
                self.train(two, *settings, *LONG, flags=["--workers", "2"])
                self.train(cut, *settings, *LONG, "duration=10 steps")
                self.resume(cut, "duration=24 steps")
                losses = self.scalar(one, "loss")
                self.assertLess(losses[-1], losses[0] - 1, (what, losses))
                self.assert_same_bits(one, two, what)
                self.assert_same_bits(one, cut, what)

    def test_experts_on_other_ranks_and_resumed_on_one(self):
        mesh = [*DOTS, "schedule.kind=constant", "parallel.engine=mesh"]
        self.train("alone", *mesh, "duration=8 steps")
        self.train("dealt", *mesh, "duration=8 steps", "parallel.workers=4", "parallel.tensor=2",
                   "parallel.zero=1", "parallel.expert=2", "parallel.expert_tensor=2")
        self.train("cut", *mesh, "duration=4 steps", "parallel.workers=3", "parallel.expert=3",
                   "parallel.zero=3", "batch.global=12")
        losses = self.scalar("alone", "loss")
        for ours, theirs in zip(self.scalar("dealt", "loss"), losses, strict=True):
            self.assertAlmostEqual(ours, theirs, 4)
        self.assertEqual(len(self.scalar("cut", "loss")), 4)
        self.resume("cut", "duration=6 steps", "parallel.workers=1", "parallel.expert=1",
                    "parallel.zero=0")
        told = self.tutti("layout", "show", "tiny.yaml", *[
            word for setting in [*mesh, "parallel.workers=2", "parallel.expert=2"]
            for word in ("--set", setting)]).stdout
        self.assertRegex(told, r"gate_proj\.weight +\[6 x 24 x 32\] +of expert x expert_tensor: "
                               r"\[3 x 24 x 32\]")
        self.assertRegex(told, r"rows to their experts +rows +all-to-all / all-to-all")

    def test_what_is_made_of_it(self):
        self.train("run", *DOTS, *LONG)
        trained = self.summary("run")["validation_loss"]
        found = json.loads(self.tutti("eval", "run", "--json").stdout)
        self.assertAlmostEqual(found["validation_loss"], trained, 6)
        self.tutti("export", "run", "--to", "out")
        self.assertEqual(json.loads(self.read("out/config.json"))["architectures"],
                         ["Dots1ForCausalLM"])
        self.write("from.yaml", "base: tiny.yaml\nmodel: {from: out}\n")
        self.tutti("train", "from.yaml", "--out", "from", "--set", "optimizer.lr=0", "--set",
                   "duration=1 steps")
        self.assertAlmostEqual(self.summary("from")["validation_loss"], trained, 5)


if __name__ == "__main__":
    unittest.main()
