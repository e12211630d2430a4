"""Real runs of a tiny model, each about a second. TUTTI_BIN names the folder of the executables."""
import fcntl
import hashlib
import itertools
import json
import math
import os
import random
import re
import shutil
import subprocess
import tempfile
import time
import unittest

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", ".."))
BIN = os.path.abspath(os.environ.get("TUTTI_BIN", os.path.join(ROOT, "build/release/bin")))

RECIPE = """\
name: tiny
seed: 3
duration: 8 steps
model: {layers: 2, embed: 32, heads: 4, kv_heads: 2}
data: {train: [text.txt], validation_fraction: 0.2, sequence: 32}
batch: {global: 12, micro: 2}
optimizer: {lr: 0.01}
schedule: {warmup: 0}
parallel: {threads: 1}
logging: {sample_tokens: 0}
"""


def text(words=4000, seed=1):
    """English-like: two dozen words, each followed by one of three others."""
    draw = random.Random(seed)
    names = ["".join(draw.choices("aeiorstln", k=draw.randint(2, 7))) for _ in range(24)]
    after = {name: draw.sample(names, 3) for name in names}
    word, parts = names[0], []
    for _ in range(words):
        parts.append(word)
        word = draw.choice(after[word])
    return " ".join(parts)


ITEM = {"F64": 8, "F32": 4, "BF16": 2, "F16": 2, "I64": 8, "I32": 4}


def stored(path):
    """The tensors of a safetensors file, as bytes by name."""
    with open(path, "rb") as file:
        data = file.read()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + size])
    return {name: data[8 + size + tensor["data_offsets"][0]:8 + size + tensor["data_offsets"][1]]
            for name, tensor in header.items() if name != "__metadata__"}


def put(whole, entry, values):
    """A piece of a tensor into its place, row by row."""
    shape, offset, size, item = entry["shape"], entry["offset"], entry["size"], ITEM[entry["dtype"]]
    row = (size[-1] if size else 1) * item
    for number, index in enumerate(itertools.product(*map(range, size[:-1]))):
        at = 0
        for length, begin, i in zip(shape, offset, [*index, 0]):
            at = at * length + begin + i
        whole[at * item:at * item + row] = values[number * row:(number + 1) * row]


def wait_for(condition, seconds=30):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.002)
    return False


def children(pid):
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            return [int(child) for child in file.read().split()]
    except FileNotFoundError:
        return []


def rank_of(pid):
    with open(f"/proc/{pid}/environ", "rb") as file:
        words = dict(word.split(b"=", 1) for word in file.read().split(b"\0") if b"=" in word)
    return int(words.get(b"TUTTI_RANK", -1))


def processes_about(folder):
    """Living processes whose command line names the folder or that stand in it."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                words = file.read()
            if words.split(b"\0")[0].endswith((b"/tutti", b"/tutti-worker")) and (
                    folder.encode() in words or os.readlink(f"/proc/{pid}/cwd").startswith(folder)):
                found.append(int(pid))
        except OSError:
            pass
    return found


def meeting_places():
    """What jobs keep in shared memory, but for those of jobs that live (they hold a lock)."""
    left = set()
    for name in os.listdir("/dev/shm"):
        if not name.startswith("tutti"):
            continue
        try:
            with open(f"/dev/shm/{name}/owner") as owner:
                fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
            left.add(name)
        except BlockingIOError:
            pass
        except OSError:
            left.add(name)
    return left


class RealRuns(unittest.TestCase):
    """Each test has a folder of its own with text.txt and tiny.yaml, where all commands run."""

    def setUp(self):
        kept = tempfile.TemporaryDirectory(prefix="tutti-e2e-")
        self.addCleanup(kept.cleanup)
        self.folder = os.path.realpath(kept.name)
        self.environment = {**os.environ, "TUTTI_CACHE": self.path("cache")}
        self.write("text.txt", text())
        self.write("tiny.yaml", RECIPE)

    def path(self, *parts):
        return os.path.join(self.folder, *parts)

    def write(self, name, content):
        os.makedirs(os.path.dirname(self.path(name)), exist_ok=True)
        with open(self.path(name), "w" if isinstance(content, str) else "wb") as file:
            file.write(content)

    def read(self, *parts):
        with open(self.path(*parts)) as file:
            return file.read()

    def tutti(self, *args, code=0, **more):
        more = {"cwd": self.folder, "env": self.environment, "text": True, "timeout": 120, **more}
        got = subprocess.run([f"{BIN}/tutti", *args], capture_output=True, **more)
        self.assertEqual(got.returncode, code, (args, got.stdout, got.stderr))
        return got

    @staticmethod
    def words(verb, subject, settings, flags=()):
        overrides = [word for setting in settings for word in ("--set", setting)]
        return [verb, *subject, *flags, *overrides]

    def train(self, out, *settings, flags=(), code=0):
        words = self.words("train", ["tiny.yaml", "--out", out], settings, flags)
        return self.tutti(*words, code=code)

    def resume(self, run, *settings, flags=(), code=0):
        return self.tutti(*self.words("resume", [run], settings, flags), code=code)

    def start(self, *words):
        """In a session of its own, as a shell starts a command; its output goes to output.txt."""
        output = open(self.path("output.txt"), "a")
        self.addCleanup(output.close)
        process = subprocess.Popen([f"{BIN}/tutti", *words], cwd=self.folder, env=self.environment,
                                   stdout=output, stderr=output, start_new_session=True)
        self.addCleanup(self.end, process)
        return process

    @staticmethod
    def end(process):
        if process.poll() is None:
            process.kill()
            process.wait(30)

    def steps(self, run):
        try:
            names = os.listdir(self.path(run, "checkpoints"))
        except FileNotFoundError:
            names = []
        return sorted(int(name[5:]) for name in names if re.fullmatch(r"step-\d+", name))

    def newest(self, run):
        return max(self.steps(run), default=0)

    def checkpoint(self, run, step, *parts):
        return self.path(run, "checkpoints", f"step-{step:08d}", *parts)

    def sums(self, run, step=None):
        """A checksum of every tensor, in however many pieces it lies: weights and the optimizer's
        state."""
        step = self.newest(run) if step is None else step
        manifest = json.loads(self.read(self.checkpoint(run, step, "manifest.json")))
        files = {entry["file"]: stored(self.checkpoint(run, step, entry["file"]))
                 for entry in manifest["entries"]}
        whole = {}
        for entry in manifest["entries"]:
            place = whole.setdefault(
                entry["name"], bytearray(ITEM[entry["dtype"]] * math.prod(entry["shape"])))
            put(place, entry, files[entry["file"]][entry.get("key", entry["name"])])
        found = {name: hashlib.sha256(values).hexdigest() for name, values in whole.items()}
        self.assertGreater(len(found), 20)
        return found

    def assert_same_bits(self, run, other, what=""):
        ours, theirs = self.sums(run), self.sums(other)
        self.assertEqual(ours.keys(), theirs.keys(), what)
        self.assertEqual([name for name in ours if ours[name] != theirs[name]], [], what)
        self.assertEqual(self.newest(run), self.newest(other), what)

    def summary(self, run):
        return json.loads(self.read(run, "summary.json"))

    def scalar(self, run, name):
        lines = self.read(run, "events/rank-000.jsonl").splitlines()
        return [record[name] for record in map(json.loads, lines)
                if record["kind"] == "scalars" and name in record]

    def copy(self, run, other):
        shutil.rmtree(self.path(other), ignore_errors=True)
        shutil.copytree(self.path(run), self.path(other))
        return other
