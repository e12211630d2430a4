"""The checks of tools/ find what they are for: each test plants one violation and sees it found.

    .venv/bin/python tests/tools.py
"""
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import check_docs  # noqa: E402
import check_headers  # noqa: E402
import check_layers  # noqa: E402
import corpus  # noqa: E402
import sizes  # noqa: E402


class Planted(unittest.TestCase):
    """A small tree of sources, clean at first."""

    def setUp(self):
        self.root = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.root)
        self.plant("src/base/error.h", "#pragma once\n#include <string>\n")
        self.plant("src/nn/model.h", '#pragma once\n#include <torch/torch.h>\n#include "base/error.h"\n')

    def plant(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def found_once(self, found, *words):
        self.assertEqual(len(found), 1, found)
        for word in words:
            self.assertIn(word, found[0])


class Layers(Planted):
    def check(self):
        return check_layers.check(self.root)

    def test_clean(self):
        self.assertEqual(self.check(), [])

    def test_upward_include(self):
        self.plant("src/base/log.cc", '#include "recipe/recipe.h"\n')
        self.found_once(self.check(), "src/base/log.cc", "recipe/recipe.h")

    def test_sideways_include(self):
        self.plant("src/data/a.cc", '#include "mesh/mesh.h"\n')
        self.found_once(self.check(), "src/data/a.cc", "mesh/mesh.h")

    def test_torch_in_torch_free_module(self):
        self.plant("src/comm/a.cc", "#include <ATen/ATen.h>\n")
        self.found_once(self.check(), "src/comm/a.cc", "without libtorch")

    def test_tutti_itself_stays_torch_free(self):
        self.plant("src/cli/main.cc", '#include "nn/model.h"\n')
        self.plant("src/cli/worker_main.cc", '#include "nn/model.h"\n')
        self.found_once(self.check(), "src/cli/main.cc", "libtorch")

    def test_tests_may_use_more(self):
        self.plant("src/base/log_test.cc", '#include "recipe/recipe.h"\n')
        self.assertEqual(self.check(), [])

    def test_unknown_module(self):
        self.plant("src/misc/a.h", "#pragma once\n")
        self.found_once(self.check(), "src/misc")

    def test_table_goes_one_way(self):
        order = list(check_layers.USES)
        for module, uses in check_layers.USES.items():
            for used in uses.split():
                self.assertLess(order.index(used), order.index(module))


class Headers(Planted):
    def test_clean(self):
        self.assertEqual(check_headers.check(self.root), [])

    def test_missing_include(self):
        self.plant("src/base/bad.h", "#pragma once\nstd::vector<int> f();\n")
        self.found_once(check_headers.check(self.root), "src/base/bad.h", "std")


class Sizes(Planted):
    def test_long_file(self):
        self.assertEqual(sizes.check(self.root), [])
        self.plant("src/base/long.cc", "\n" * 501)
        self.found_once(sizes.check(self.root), "long.cc", "501")


class Docs(Planted):
    def test_links(self):
        self.plant("docs/a.md", "# A part\n[b](b.md) [self](#a-part) [web](https://example.org)\n")
        self.plant("docs/b.md", "# B\n[a](a.md#a-part)\n")
        self.assertEqual(check_docs.check(self.root), [])
        self.plant("docs/c.md", "[gone](gone.md)\n")
        self.plant("docs/d.md", "[heading](a.md#nowhere)\n")
        self.assertEqual(len(check_docs.check(self.root)), 2)


class Tidy(unittest.TestCase):
    """clang-tidy with our configuration: quiet on our style, not on bugs or foreign names."""

    def tidy(self, text):
        with tempfile.TemporaryDirectory() as folder:
            source = pathlib.Path(folder) / "a.cc"
            source.write_text(text)
            return subprocess.run(["clang-tidy-19", "--quiet", f"--config-file={ROOT}/.clang-tidy",
                                   str(source), "--", "-std=c++20"], capture_output=True, text=True)

    def test_clean(self):
        done = self.tidy("int twice(int number) { return 2 * number; }\n")
        self.assertEqual(done.returncode, 0, done.stdout)

    def test_foreign_name(self):
        done = self.tidy("int twiceOf(int number) { return 2 * number; }\n")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("readability-identifier-naming", done.stdout)

    def test_use_after_move(self):
        done = self.tidy("#include <string>\n#include <utility>\nvoid take(std::string text);\n"
                         "auto f(std::string s) { take(std::move(s)); return s.size(); }\n")
        self.assertIn("bugprone-use-after-move", done.stdout)


class Format(unittest.TestCase):
    def test_wide_line(self):
        done = subprocess.run(["clang-format-19", "--dry-run", "-Werror", f"--style=file:{ROOT}/.clang-format"],
                              input="int   f( );\n", capture_output=True, text=True)
        self.assertNotEqual(done.returncode, 0)


class Corpus(unittest.TestCase):
    def test_notes_are_cut(self):
        text = ("Small print\n*** START OF THIS TEXT ***\nACT I\n<<THIS ELECTRONIC VERSION\nIS COPYRIGHT>>\n"
                "HAMLET. Words.\r\n*** END OF THIS TEXT ***\nlicence\n")
        self.assertEqual(corpus.clean(text), "ACT I\n\nHAMLET. Words.\n")

    def test_left_boilerplate_is_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            for number in range(corpus.PLAYS):
                (pathlib.Path(folder) / f"play{number:02}_gut.txt").write_text("ACT I\nWords.\n")
            self.assertEqual(len(corpus.read_plays(pathlib.Path(folder))), corpus.PLAYS)
            (pathlib.Path(folder) / "play07_gut.txt").write_text("A Project Gutenberg text\n")
            with self.assertRaisesRegex(SystemExit, "play07.*Gutenberg"):
                corpus.read_plays(pathlib.Path(folder))
            (pathlib.Path(folder) / "play07_gut.txt").unlink()
            with self.assertRaisesRegex(SystemExit, "36 plays"):
                corpus.read_plays(pathlib.Path(folder))

    def test_written_corpus(self):
        folder = ROOT / "corpus" / "shakespeare"
        if not folder.exists():
            self.skipTest("no corpus here")
        train, held_out = (sorted(folder.glob(f"{part}/*.txt")) for part in ("train", "held_out"))
        self.assertEqual((len(train), len(held_out)), (34, 3))
        self.assertFalse({p.name for p in train} & {p.name for p in held_out})
        for path in train + held_out:
            text = path.read_text(encoding="utf-8")
            self.assertIsNone(corpus.BOILERPLATE.search(text), path)
            self.assertGreater(len(text), 80_000, path)
            acts = re.findall(r"^ *(?:ACT|Actus)\b", text, re.MULTILINE | re.IGNORECASE)
            self.assertGreaterEqual(len(acts), 1, path)


class Setup(unittest.TestCase):
    def test_shell_is_sound(self):
        for name in ("tutti", "tools/setup.sh"):
            subprocess.run(["sh", "-n", name], cwd=ROOT, check=True)
        for name in ("dev", ".ci/run"):
            subprocess.run(["bash", "-n", name], cwd=ROOT, check=True)

    def test_dev_refuses_unknown_verbs(self):
        done = subprocess.run([ROOT / "dev", "nonsense"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 2)
        self.assertIn("no verb 'nonsense'", done.stderr)


if __name__ == "__main__":
    unittest.main()
