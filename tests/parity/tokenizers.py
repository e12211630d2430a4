"""Tokenizers against the `tokenizers` and `sentencepiece` libraries: identical ids, exact decoding.

Every tokenizer is trained here, on text made here. TUTTI_BIN names the folder of the binaries
(default build/release/bin); TUTTI_STRINGS the number of strings for each tokenizer (10000).
"""
import json
import os
import random
import subprocess
import sys
import tempfile
import unicodedata
import unittest

sys.path[:] = [p for p in sys.path if os.path.abspath(p or ".") != os.path.dirname(os.path.abspath(__file__))]
import sentencepiece as spm
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BIN = os.environ.get("TUTTI_BIN", os.path.join(ROOT, "build/release/bin"))
COUNT = int(os.environ.get("TUTTI_STRINGS", "10000"))
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
SPECIAL = ["<|endoftext|>", "<|start|>", "<s>", "</s>", "<|left|>", "<|right|>", "<|both|>", "word"]
WORDS = ("the of and to in it's don't I'm we've they'll he'd you're Hello WORLD 'S 'LL naive na\u00efve caf\u00e9 "
         "stra\u00dfe \u4f60\u597d \u3053\u3093\u306b\u3061\u306f \u041f\u0440\u0438\u0432\u0435\u0442 \u0645\u0631\u062d\u0628\u0627 "
         "\u0928\u092e\u0938\u094d\u0924\u0947 \ud55c\uad6d\uc5b4 \U0001F600 \U0001F468\u200d\U0001F469\u200d\U0001F467 e\u0301 \u1e9b\u0323 def return x1 a_b").split()
SPACES = [" ", "  ", "   ", "\t", "\n", "\r\n", "\n\n", " \n ", "\u00a0", "\u3000", "\u2003", "\u180e", "\u0085", "\u2028", "\u200b", "\x0b", "\x0c"]


def assigned(point):
    return not 0xD800 <= point < 0xE000 and unicodedata.category(chr(point)) != "Cn"


def any_character(draw):
    """Uniform over planes first, so that each plane is seen; unassigned points too, now and then."""
    while True:
        plane = draw.choice([0, 0, 0, 1, 1, 2, 3, 14, 15, 16, draw.randrange(17)])
        point = plane * 0x10000 + draw.randrange(0x10000)
        if 0xD800 <= point < 0xE000:
            continue
        if assigned(point) or draw.random() < 0.05:
            return chr(point)


def one_string(draw):
    parts = []
    for _ in range(draw.randrange(0, 24)):
        kind = draw.randrange(10)
        if kind < 4:
            parts.append(draw.choice(WORDS))
        elif kind < 6:
            parts.append("".join(draw.choice(SPACES) for _ in range(draw.randrange(1, 4))))
        elif kind == 6:
            parts.append("".join(any_character(draw) for _ in range(draw.randrange(1, 6))))
        elif kind == 7:
            parts.append(str(draw.randrange(10 ** draw.randrange(1, 12))))
        elif kind == 8:
            parts.append(draw.choice(SPECIAL + ["'s", "'Ve", "'\u017f", "...", "!?", "--", "\u2581", "<0x41>"]))
        else:
            parts.append("".join(chr(draw.randrange(32, 127)) for _ in range(draw.randrange(1, 12))))
        if draw.random() < 0.5:
            parts.append(" ")
    return "".join(parts)


def newer_punctuation(text):
    """Has a character that is punctuation in Python's Unicode but not in the library's older table, or the reverse."""
    pre = pre_tokenizers.Punctuation("isolated")
    return any((len(pre.pre_tokenize_str("a" + c + "a")) > 1) != (unicodedata.category(c)[0] == "P")
               for c in set(text) if ord(c) > 127)


STRINGS = [one_string(random.Random(f"tutti {i}")) for i in range(COUNT)]
STRINGS[:6] = ["", " ", "\n", "a", "x" * 3000, "ab " * 500]
TEXT = [" ".join(random.Random(f"text {i}").choices(WORDS, k=12)) + "\n" for i in range(3000)]


TUTTI = os.path.join(BIN, "tutti")
BENCH = os.path.join(BIN, "data_lines_bench")  # the same filter, where `tutti` has none
HELP = subprocess.run([TUTTI, "tokenizer", "encode", "--help"], capture_output=True, text=True).stdout if os.path.exists(TUTTI) else ""


def program(verb, tokenizer):
    if "--lines" in HELP:
        return [TUTTI, "tokenizer", verb, "--tokenizer", tokenizer, "--lines"]
    return [BENCH, verb, tokenizer]


def through(verb, tokenizer, values):
    sent = "".join(json.dumps(v) + "\n" for v in values)
    done = subprocess.run(program(verb, tokenizer), input=sent, capture_output=True, text=True)
    if done.returncode:
        raise AssertionError(done.stderr)
    return [json.loads(line) for line in done.stdout.split("\n") if line]


class Parity(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def compare(self, path, theirs, decode, leave_out=lambda text: False):
        ours = through("encode", path, STRINGS)
        self.assertEqual(len(ours), len(STRINGS))
        wrong = [i for i in range(len(STRINGS)) if ours[i] != theirs[i] and not leave_out(STRINGS[i])]
        if wrong:
            i = wrong[0]
            self.fail(f"{len(wrong)} of {len(STRINGS)} differ; first {i}: {STRINGS[i]!r}\nours   {ours[i]}\ntheirs {theirs[i]}")
        draw = random.Random("ids")
        size = max(max(ids) for ids in theirs if ids) + 1
        ids = theirs + [[draw.randrange(size) for _ in range(draw.randrange(20))] for _ in range(COUNT // 5)]
        wrong = [(a, o, decode(a)) for a, o in zip(ids, through("decode", path, ids)) if o != decode(a)]
        self.assertFalse(wrong[:1], f"{len(wrong)} decoded otherwise")

    def hugging_face(self, tokenizer, text_exact=False, leave_out=lambda text: False):
        path = os.path.join(self.folder.name, "tokenizer.json")
        tokenizer.save(path)
        theirs = [e.ids for e in tokenizer.encode_batch(STRINGS, add_special_tokens=False)]
        self.compare(path, theirs, lambda ids: tokenizer.decode(ids, skip_special_tokens=False), leave_out)
        if text_exact:
            self.assertEqual(through("decode", path, through("encode", path, STRINGS)), STRINGS)

    def byte_level(self, pre, normalizer=None, text_exact=True, special=SPECIAL[:4], leave_out=lambda text: False, **model):
        t = Tokenizer(models.BPE(**model))
        t.normalizer = normalizer
        t.pre_tokenizer = pre
        t.decoder = decoders.ByteLevel()
        t.train_from_iterator(TEXT, trainers.BpeTrainer(vocab_size=900, show_progress=False, special_tokens=special,
                                                        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
        if text_exact is not None:
            return self.hugging_face(t, text_exact, leave_out)
        return t

    def split(self, pattern):
        return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"),
                                        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])

    def test_gpt2(self):
        self.byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False))

    def test_gpt2_with_prefix_space(self):
        self.byte_level(pre_tokenizers.ByteLevel(add_prefix_space=True), text_exact=False)

    def test_llama3(self):
        t = self.byte_level(self.split(LLAMA3), text_exact=None)
        saved = json.loads(t.to_str())
        saved["model"]["ignore_merges"] = True
        self.hugging_face(Tokenizer.from_str(json.dumps(saved)), True)

    def test_qwen(self):
        self.byte_level(self.split(QWEN), normalizers.NFC(), text_exact=False)

    def test_flags_of_added_tokens(self):
        t = self.byte_level(self.split(GPT2), normalizers.NFC(), text_exact=None)
        t.add_special_tokens([AddedToken("<|left|>", lstrip=True), AddedToken("<|right|>", rstrip=True),
                              AddedToken("<|both|>", lstrip=True, rstrip=True, normalized=True)])
        t.add_tokens([AddedToken("word", single_word=True), AddedToken("caf\u00e9", normalized=True)])
        self.hugging_face(t)

    def test_digits_and_punctuation(self):
        P = pre_tokenizers
        for behavior in ("isolated", "contiguous", "merged_with_previous", "merged_with_next", "removed"):
            with self.subTest(behavior):
                self.byte_level(P.Sequence([P.Digits(individual_digits=behavior == "isolated"), P.Punctuation(behavior),
                                            P.ByteLevel(add_prefix_space=False)]), text_exact=False,
                                leave_out=newer_punctuation)

    def llama2(self, **model):
        t = Tokenizer(models.BPE(unk_token="<unk>", **model))
        t.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
        t.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(),
                                       decoders.Strip(" ", 1, 0)])
        special = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)]
        t.train_from_iterator(TEXT, trainers.BpeTrainer(vocab_size=900, show_progress=False, special_tokens=special[:3]))
        saved = json.loads(t.to_str())
        if model.get("byte_fallback"):
            for piece in special[3:]:
                saved["model"]["vocab"][piece] = len(saved["model"]["vocab"])
        return Tokenizer.from_str(json.dumps(saved))

    def test_llama2_byte_fallback(self):
        self.hugging_face(self.llama2(byte_fallback=True, fuse_unk=True))

    def test_llama2_unknown(self):
        for fuse in (False, True):
            with self.subTest(fuse=fuse):
                self.hugging_face(self.llama2(fuse_unk=fuse))

    def test_metaspace(self):
        for scheme in ("always", "first", "never"):
            with self.subTest(scheme):
                t = self.llama2(byte_fallback=True, fuse_unk=True)
                t.normalizer = None
                t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=scheme != "first")
                t.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(prepend_scheme=scheme)])
                t.add_special_tokens(["<s>"])
                self.hugging_face(t)

    def sentencepiece(self, **options):
        prefix = os.path.join(self.folder.name, "piece")
        spm.SentencePieceTrainer.train(sentence_iterator=iter(TEXT), model_prefix=prefix, minloglevel=3, num_threads=1,
                                       hard_vocab_limit=False, **options)
        theirs = spm.SentencePieceProcessor(model_file=prefix + ".model")
        self.compare(prefix + ".model", theirs.encode(STRINGS), theirs.decode)

    @unittest.skipUnless(HELP, "no tutti in TUTTI_BIN")
    def test_trained_by_tutti(self):
        text = os.path.join(self.folder.name, "text.txt")
        with open(text, "w") as f:
            f.write("".join(TEXT))
        for split in ("gpt2", "llama3", "qwen"):
            with self.subTest(split):
                path = os.path.join(self.folder.name, "made.json")
                subprocess.run([TUTTI, "tokenizer", "train", text, "--vocab", "900", "--split", split, "--out", path],
                               check=True, capture_output=True)
                theirs = Tokenizer.from_file(path)
                self.assertGreater(theirs.get_vocab_size(), 400)
                self.compare(path, [e.ids for e in theirs.encode_batch(STRINGS)],
                             lambda ids: theirs.decode(ids, skip_special_tokens=False))
                one = subprocess.run([TUTTI, "tokenizer", "encode", "--tokenizer", path, "--json"], check=True,
                                     input=TEXT[0].encode(), capture_output=True).stdout
                self.assertEqual(json.loads(one), theirs.encode(TEXT[0]).ids)

    def test_sentencepiece(self):
        for kind in ("unigram", "bpe"):
            for options in ({}, {"byte_fallback": True, "vocab_size": 600},
                            {"normalization_rule_name": "identity", "remove_extra_whitespaces": False},
                            {"normalization_rule_name": "nfkc_cf", "add_dummy_prefix": False},
                            {"user_defined_symbols": ["<|start|>", "...", "ing", "\u4f60"], "split_digits": True}):
                with self.subTest(kind, **{k: str(v) for k, v in options.items()}):
                    self.sentencepiece(model_type=kind, **({"vocab_size": 300} | options))


if __name__ == "__main__":
    unittest.main()
