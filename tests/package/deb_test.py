#!/usr/bin/env python3
"""Builds the planner's Debian package, unpacks it into an empty root and runs it there.

  deb_test.py BUILD CPACK               the root gets only the libraries of the packages it depends on
  deb_test.py BUILD CPACK debootstrap   a fresh Debian instead, where apt installs all packages (soak)

ctest treats a line "skipped: REASON" as a skipped test.
"""

import gzip
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request

import binaries_test


def run(*command, status=0, **options):
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, text=True,
                          stderr=subprocess.STDOUT, timeout=1800, **options)
    if status is not None and done.returncode != status:
        sys.exit(f"{' '.join(map(str, command))}: status is {done.returncode}, expected {status}\n{done.stdout[-4000:]}")
    return done.stdout


def check(good, problem):
    if not good:
        sys.exit(problem)


def skip(why):
    print(f"skipped: {why}")
    sys.exit(0)


def depended(names):
    """Returns the installed packages that `names` depend on, transitively."""
    found, left = set(), list(names)
    while left:
        name = left.pop()
        if name in found:
            continue
        form = "${db:Status-Status}|${Depends}, ${Pre-Depends}\n"
        query = subprocess.run(["dpkg-query", "-W", "-f", form, name], capture_output=True, text=True)
        if query.stdout.startswith("installed|"):  # otherwise another alternative is installed
            found.add(name)
            left += re.findall(r"[,|]\s*([a-z0-9][a-z0-9+.-]+)", query.stdout.splitlines()[0])
    return found


def copy_libraries(packages, root):
    """Copies the shared libraries of packages to `root`."""
    for line in run("dpkg", "-L", *sorted(packages)).splitlines():
        path = pathlib.Path(line)
        if re.search(r"\.so(\.|$)", path.name) and path.is_file():
            place = root / path.relative_to("/")
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, place)
    for name in ("lib", "lib64"):  # links on a system whose /usr is merged
        if pathlib.Path("/" + name).is_symlink() and not (root / name).exists():
            (root / name).symlink_to("usr/" + name)
        elif (root / name).is_dir() and pathlib.Path("/" + name).is_symlink():
            shutil.copytree(root / name, root / "usr" / name, dirs_exist_ok=True)
            shutil.rmtree(root / name)
            (root / name).symlink_to("usr/" + name)


def check_contents(root, version, tree):
    """Checks what lintian would report first."""
    programs = [root / "usr/bin" / name for name in ("tessera", "tessera-dashboard")]
    for program in programs:
        printed = run("readelf", "-W", "-S", "-d", program)
        check(".debug_info" not in printed, f"{program.name} is not stripped")
        check(str(tree) not in printed, f"{program.name} contains the path of the source tree")
        check("torch" not in printed, f"{program.name} depends on torch:\n{printed}")
        check(not re.search(r"libmpi", printed), f"{program.name} depends on MPI")
        check("[$ORIGIN/../lib]" in printed, f"{program.name} has another RUNPATH:\n{printed}")
        problems = list(binaries_test.problems_of(program))
        check(not problems, f"{program.name}: {problems}")
    docs = root / "usr/share/doc/tessera-planner"
    check("MIT License" in (docs / "copyright").read_text(), "copyright has no license")
    log = gzip.open(docs / "changelog.gz", "rt").read()
    check(re.match(rf"tessera-planner \({re.escape(version)}\) \S+; urgency=\w+\n", log)
          and re.search(r"^ -- .+ <.+>  \w{3}, \d\d \w{3} \d{4} ", log, re.MULTILINE), log)
    manuals = sorted((root / "usr/share/man/man1").glob("*"))
    check({"tessera.1.gz", "tessera-plan.1.gz"} <= {page.name for page in manuals}, f"{manuals}")
    for page in manuals:
        text = gzip.open(page, "rt").read()
        check(text.startswith(".TH ") and f'"tessera {version}"' in text, f"{page.name}: {text[:80]}")
    for path in (root / "usr").rglob("*"):
        mode = path.lstat().st_mode & 0o7777
        expected = 0o755 if path.is_dir() or path in programs else 0o644
        check(mode == expected, f"{path.relative_to(root)} has mode {mode:o}, expected {expected:o}")
    if shutil.which("bash"):
        script = root / "usr/share/bash-completion/completions/tessera"
        completed = run("bash", "-c", f". {script}; COMP_WORDS=(tessera pla); COMP_CWORD=1; _tessera; "
                   "echo ${COMPREPLY[@]}")
        check(completed.strip() == "plan", f"completes \"pla\" to {completed!r}")


def chroot(root):
    """Returns the command prefix that runs a program in `root`, with its own /proc."""
    (root / "proc").mkdir(exist_ok=True)
    (root / "tmp").mkdir(exist_ok=True)
    inside = f'mount -t proc proc "{root}/proc" && exec chroot "{root}" "$@"'
    words = ["unshare", "--mount", "--pid", "--fork", "--kill-child"]
    if os.geteuid() != 0:
        words.append("--map-root-user")
    return words + ["sh", "-c", inside, "sh"]


def check_programs(inside, version):
    """Runs the commands of the planner in a root with only the package and its dependencies."""
    tessera = [*inside, "/usr/bin/tessera"]
    check(run(*tessera, "--version") == f"tessera {version} (without LibTorch)\n", "--version prints another version")
    printed = run(*tessera, "plan", "--params", "175B", "--tp", "8", "--pp", "4", "--dp", "8", "--zero", "2",
               "--layout", "bf16-nomaster", "--hardware", "a100-80")
    check("10.9 GB" in printed, f"plan prints:\n{printed}")
    check("bubble 27.3%" in run(*tessera, "explain", "schedule", "--stages", "4", "--micro-batches", "8",
                                "--schedule", "1f1b"), "explain schedule prints another bubble")
    run(*tessera, "simulate", "--model", "gpt2-xl", "--dp", "8", "--hardware", "a100-80")
    printed = run(*tessera, "train", status=1)
    check("package tessera" in printed and "tessera-torch" in printed, f"train prints:\n{printed}")
    check("Try: tessera plan --help" in run(*tessera, "plan", "--nonsense", status=2), "the message does not name --help")
    server = subprocess.Popen([*tessera, "dashboard"], stdout=subprocess.PIPE, text=True)
    try:
        address = re.search(r"http://127\.0\.0\.1:\d+", server.stdout.readline())
        check(address, "the dashboard prints no address")
        about = urllib.request.urlopen(address[0] + "/api/about", timeout=20).read().decode()
        check(version in about, f"/api/about returns {about}")
        page = urllib.request.urlopen(address[0] + "/", timeout=20).read().decode()
        check("<html" in page, f"the dashboard serves {page[:200]}")
    finally:
        server.kill()


def in_fresh_debian(debs, folder, version):
    if not shutil.which("debootstrap") or os.geteuid() != 0:
        skip("a fresh Debian needs root and debootstrap (Debian: debootstrap)")
    root = folder / "debian"
    suite = run("sh", "-c", ". /etc/os-release; echo $VERSION_CODENAME").strip()
    run("debootstrap", "--variant=minbase", suite, root)
    for deb in debs:
        shutil.copy(deb, root / "tmp")
    inside = chroot(root)
    run(*inside, "apt-get", "-q", "install", "-y", "--no-install-recommends",
        *(f"/tmp/{deb.name}" for deb in debs if "planner" in deb.name))
    check_programs(inside, version)
    run(*inside, "apt-get", "-q", "install", "-y", "--no-install-recommends", "lintian")
    run(*inside, "lintian", "--allow-root", "--fail-on", "error",
        "--suppress-tags", "bogus-mail-host,no-changelog,embedded-library",
        *(f"/tmp/{deb.name}" for deb in debs if "planner" in deb.name))
    others = [f"/tmp/{deb.name}" for deb in debs if "planner" not in deb.name]
    if others:
        printed = run(*inside, "apt-get", "-q", "install", "-y", "--no-install-recommends", *others)
        check("ln -s" in printed, f"the package tessera does not print where LibTorch belongs:\n{printed}")
        run(*inside, "apt-get", "-q", "remove", "-y", "tessera-planner")
        left = [path for path in (root / "usr").rglob("*tessera*") if path.name != "tessera"]
        check(not left, f"removing the package left {left}")


def main():
    build, cpack, fresh = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2], "debootstrap" in sys.argv
    for program in ("dpkg-deb", "dpkg-shlibdeps", "file", "readelf", "strip"):
        if not shutil.which(program):
            skip(f"{program} is missing (Debian: dpkg-dev file binutils)")
    version = re.search(r"\d+\.\d+\.\d+", run(build / "bin/tessera", "--version"))[0]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        words = [] if fresh else ["-D", "CPACK_COMPONENTS_ALL=planner"]
        run(cpack, "-G", "DEB", *words, "--config", build / "CPackConfig.cmake", "-B", folder / "out")
        debs = sorted((folder / "out").glob("*.deb"))
        if fresh:
            in_fresh_debian(debs, folder, version)
            return
        check(len(debs) == 1, f"cpack must build one package, but built {debs}")
        field = {key: run("dpkg-deb", "-f", debs[0], key).strip()
                 for key in ("Package", "Version", "Architecture", "Depends", "Description", "Maintainer")}
        check(field["Package"] == "tessera-planner" and field["Version"] == version, f"{field}")
        check(field["Architecture"] == run("dpkg", "--print-architecture").strip(), f"{field}")
        depends = re.findall(r"(?:^|, )([a-z0-9+.-]+)", field["Depends"])
        check("libc6" in depends and "libstdc++6" in depends, f"Depends: {field['Depends']}")
        check(not re.search("torch|mpi", field["Depends"]), f"Depends: {field['Depends']}")
        root = folder / "root"
        run("dpkg-deb", "-x", debs[0], root)
        check_contents(root, version, pathlib.Path(__file__).resolve().parents[2])
        copy_libraries(depended(depends), root)
        inside = chroot(root)
        if subprocess.run([*inside, "/usr/bin/tessera", "--version"], capture_output=True).returncode != 0:
            why = run(*inside, "/usr/bin/tessera", "--version", status=None).strip()
            if re.search("unshare|mount", why):
                skip(f"the files of the package are correct, but chroot does not work here: {why}")
            sys.exit(why)
        check_programs(inside, version)
        print(f"{debs[0].name}, with {', '.join(depends)}")


if __name__ == "__main__":
    main()
