"""Programs with a planted bug, to show that a test finds it: `program()` builds one from changed
copies of its sources, in build/planted/NAME, with the commands that make would use.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
FOLDER = ROOT / "build/planted"


def _commands(target, sources):
    """The commands that make would run to build @target if @sources were newer."""
    changed = [word for source in sources for word in ("-W", source)]
    env = {key: value for key, value in os.environ.items() if not key.startswith("MAKE")}
    done = subprocess.run(
        ["make", "-n", "V=1", *changed, target],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.replace("-Werror ", "").splitlines()


def program(name, target, changes, users=()):
    """Builds @target, e.g. build/gcc/check/sim, with [(source, old, new), …] changed. @users: the
    sources that use what is changed in headers. Returns its path.
    """
    folder = FOLDER / name
    shutil.rmtree(folder, ignore_errors=True)
    for source, old, new in changes:
        copy = folder / source
        text = (copy if copy.exists() else ROOT / source).read_text()
        if text.count(old) != 1:
            raise ValueError(f"{source} contains {text.count(old)} times: {old}")
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(text.replace(old, new))
    changed = {source for source, _, _ in changes}
    commands = _commands(target, [*changed, *users])
    built = folder / Path(target).name
    (link,) = [line for line in commands if f" -o {target} " in line]
    link = link.replace(f"-o {target} ", f"-o {built} ")
    for source in [*(source for source in changed if source.endswith(".c")), *users]:
        objects = {
            re.search(r" -o (\S+)", line)[1]: line for line in commands if f" -c {source} " in line
        }
        linked = [object_ for object_ in objects if f" {object_} " in link]
        planted = folder / (source + ".o")
        if linked:
            (object_,) = linked
            link = link.replace(f" {object_} ", f" {planted} ")
        else:  # a member of the archive: the first definition counts
            (object_,) = objects
            link = re.sub(r" (\S+/all\.a)", rf" {planted} \1", link, count=1)
        planted.parent.mkdir(parents=True, exist_ok=True)
        copy = folder / source if source in changed else source
        compile_ = objects[object_].replace(" -I. ", f" -I{folder} -I. ")
        compile_ = compile_.replace(f" -c {source} -o {object_}", f" -c {copy} -o {planted}")
        subprocess.run(compile_, shell=True, cwd=ROOT, check=True)
    subprocess.run(link, shell=True, cwd=ROOT, check=True)
    (folder / "fake").symlink_to(ROOT / Path(target).parent / "fake")  # test_copies loads it
    return built
