"""What is wrong with a recipe, its data or its numbers is told with field, value and remedy and the
right exit code, and nothing is lost."""
import json
import os
import unittest

from helpers.runs import RealRuns


class Recipes(RealRuns):
    MISTAKES = [  # settings, and what must be said of each
        (["optimizer.lrr=1"], ["optimizer.lrr", "lr"]),
        (["optimizr.lr=1"], ["optimizr", "optimizer"]),
        (["optimizer.name=adam"], ["optimizer.name = adam", "adamw"]),
        (["optimizer.lr=fast"], ["optimizer.lr = fast", "number"]),
        (["duration=10"], ["duration = 10", "steps"]),
        (["duration=0 steps"], ["duration = 0", "above 0"]),
        (["batch.micro=5"], ["batch.micro = 5", "divide batch.global = 12", "4 or 6"]),
        (["parallel.workers=4"], ["parallel.workers = 4", "6 micro-batches", "3 or 6"]),
        (["model.heads=5"], ["model.heads = 5", "model.embed = 32", "4 or 8"]),
        (["model.kv_heads=3"], ["model.kv_heads = 3", "2 or 4"]),
        (["model.context=16"], ["model.context = 16", "data.sequence = 32"]),
        (["model.vocab=100"], ["model.vocab = 100", "256"]),
        (["schedule.warmup=9 steps"], ["schedule.warmup = 9 steps", "8 steps"]),
        (["data.validation=text.txt"], ["data.validation", "contradicts", "remove"]),
        (["data.train=nothing.txt"], ["data.train", "nothing.txt", "does not exist"]),
        (["data.train=txet.txt"], ["data.train", "text.txt"]),
        (["data.tokenizer=nothing"], ["data.tokenizer = nothing", "bytes"]),
        (["model.from=nothing"], ["model.from", "nothing"]),
        (["optimizer.lrr=1", "batch.micro=5", "data.train=no.txt"],
         ["lrr", "batch.micro", "no.txt"]),
    ]

    def test_mistakes(self):
        for settings, wanted in self.MISTAKES:
            with self.subTest(settings):
                said = self.train("run", *settings, code=2).stderr
                for word in wanted:
                    self.assertIn(word, said)
                self.assertFalse(os.path.exists(self.path("run")))

    def test_resume_refuses_another_model(self):
        self.train("run")
        before = self.read("run/recipe.yaml")
        said = self.resume("run", "model.embed=64", code=2).stderr
        self.assertIn("model.embed", said)
        self.assertEqual(self.read("run/recipe.yaml"), before)
        self.assertIn("recipe.yaml", self.resume("cache", code=2).stderr)


    def test_resume_offers_no_remedy_that_it_would_refuse(self):
        self.train("run")
        said = self.resume("run", "parallel.workers=5", code=2).stderr
        self.assertIn("parallel.workers = 5", said)
        self.assertIn("a resumed run keeps its model, batch and optimizer", said)

    def test_parity_looks_at_its_page_before_it_works(self):
        for page, wanted in (("nowhere/page.html", "lies in no folder"), (".", "is a folder")):
            said = self.tutti("parity", "tiny.yaml", "--html", page, code=2).stderr
            self.assertIn(f"--html = {page}: {wanted}", said)
            self.assertNotIn("agrees", said)


class Data(RealRuns):
    def setUp(self):
        super().setUp()
        self.tutti("tokenizer", "train", "text.txt", "--vocab", "300", "--out", "tokenizer.json")
        self.tutti("tokenize", "text.txt", "--tokenizer", "tokenizer.json", "--out", "bpe.tutti")
        self.write("empty.txt", "")
        self.write("short.txt", "only a few words")
        self.write("latin.txt", ("caf\xe9 " * 500).encode("latin-1"))
        self.write("bad.jsonl", json.dumps({"text": "word " * 100}) + "\n{oops\n")
        self.write("untitled.jsonl", json.dumps({"words": "word " * 100}) + "\n")
        os.makedirs(self.path("void"))
        with open(self.path("bpe.tutti"), "rb") as file:
            self.corpus = file.read()
        self.write("cut.tutti", self.corpus[:-100])

    def mistakes(self):
        bpe = "data.tokenizer=tokenizer.json"
        return [  # settings, exit code, and what must be said
            (["data.train=empty.txt"], 2, ["data.train", "empty.txt", "empty", "name a file"]),
            (["data.train=void"], 2, ["data.train", "void", "no files"]),
            (["data.train=short.txt"], 2, ["short.txt", "data.sequence = 32", "33", "shorter"]),
            (["data.train=[text.txt, empty.txt, void]"], 2, ["empty.txt", "void"]),
            (["data.validation_fraction=0", "data.validation=empty.txt"], 2,
             ["data.validation", "empty.txt"]),
            (["data.validation_fraction=0.001"], 2, ["data.sequence", "text.txt"]),
            (["data.train=latin.txt", bpe], 2, ["data.train", "latin.txt", "UTF-8", "offset 3",
                                                "bytes"]),
            (["data.train=bad.jsonl"], 2, ["data.train", "bad.jsonl:2", "JSON"]),
            (["data.train=untitled.jsonl"], 2, ["untitled.jsonl:1", "\"text\"", "data.text_field"]),
            (["data.train=bpe.tutti"], 2, ["bpe.tutti", "another tokenizer", "data.tokenizer"]),
            ([bpe, "model.vocab=280"], 2, ["model.vocab = 280", "299", "300"]),
            (["data.train=cut.tutti", bpe], 1, ["cut.tutti", "long"]),
        ]

    def test_mistakes(self):
        for number, (settings, code, wanted) in enumerate(self.mistakes()):
            with self.subTest(settings):
                got = self.train(f"run{number}", *settings, flags=["--workers", "2"], code=code)
                for word in wanted:
                    self.assertIn(word, got.stderr)

    def test_a_model_with_more_ids_than_its_tokenizer(self):
        """Padded vocabularies are common: what the model writes has text all the same."""
        self.train("run", "model.vocab=300")
        self.assertEqual(self.summary("run")["steps"], 8)
        self.tutti("generate", "run", "--tokens", "200", "--temperature", "0")

    def test_an_id_beyond_the_vocabulary(self):
        """A damaged file that its checksums do not betray: the token is named, not looked up."""
        start, size, count = 128, 2, int.from_bytes(self.corpus[16:24], "little")
        broken = bytearray(self.corpus)
        broken[start:start + size * count] = b"\xff\xee" * count
        self.write("bpe.tutti", bytes(broken))
        got = self.train("run", "data.train=bpe.tutti", "data.tokenizer=tokenizer.json", code=1)
        self.assertRegex(got.stderr, r"bpe.tutti: token \d+ is 61183, beyond the vocabulary of 300")

    def test_what_is_no_mistake(self):
        self.train("latin", "data.train=latin.txt")
        self.train("bpe", "data.train=bpe.tutti", "data.tokenizer=tokenizer.json")
        self.train("text", "data.tokenizer=tokenizer.json")
        self.assert_same_bits("text", "bpe")


class NotFinite(RealRuns):
    WILD = ("optimizer.lr=1e37", "optimizer.clip=0", "checkpoint.every=1 steps")

    def test_stop_names_the_step_and_the_tensor(self):
        for workers in ("1", "2"):
            with self.subTest(workers=workers):
                run = f"run{workers}"
                got = self.train(run, *self.WILD, flags=["--workers", workers], code=1)
                self.assertRegex(got.stderr,
                                 r"step 2: the (loss|gradient of model\.\S+) is not finite")
                self.assertIn("optimizer.lr", got.stderr)
                self.assertIn("on_nan: skip", got.stderr)
                self.assertIn("the checkpoint of step 1 is whole", got.stderr)
                self.assertEqual(self.steps(run), [1])
                self.tutti("checkpoint", "verify", run)
                self.assertEqual(self.summary(run)["exit"], 1)

    def test_a_gradient_of_a_finite_loss(self):
        got = self.train("run", "model.init_std=1e12", code=1)
        self.assertRegex(got.stderr, r"step 1: the gradient of model\.\S+ is not finite .loss 5\.5")
        self.assertIn("there is no checkpoint yet", got.stderr)
        self.assertEqual(self.steps("run"), [])

    def test_skip_goes_on(self):
        self.train("run", *self.WILD, "on_nan=skip")
        self.assertEqual(self.summary("run")["steps"], 8)
        warned = [json.loads(line) for line in self.read("run/events/rank-000.jsonl").splitlines()]
        warned = [record for record in warned if record.get("name") == "warning"]
        self.assertEqual([record["step"] for record in warned], list(range(2, 9)))
        weights = {step: {name: value for name, value in self.sums("run", step).items()
                          if name.startswith("model/")} for step in self.steps("run")}
        self.assertEqual(weights[7], weights[8])


if __name__ == "__main__":
    unittest.main()
