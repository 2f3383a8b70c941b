"""Follow a Dockerfile without a container engine: each stage is a bare Debian root, entered by chroot.

    python -m tests.container.dockerfile FOLDER    builds ours into FOLDER/stage-N (as root)

Only what our Dockerfile uses is known; anything else is an error. The bare root is made once by debootstrap.
What this machine needs to reach its package indexes (certificates, pip's configuration, the names of hosts)
is there while a step runs, as a container engine would give its network.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path

__all__ = ["Image", "Instruction", "Stage", "build", "missing_tools", "parse"]

ROOT = Path(__file__).parents[2]
SUITE, MIRROR = "bookworm", "http://deb.debian.org/debian"
KNOWN = frozenset(
    [
        "FROM",
        "RUN",
        "COPY",
        "WORKDIR",
        "ENV",
        "USER",
        "VOLUME",
        "EXPOSE",
        "STOPSIGNAL",
        "HEALTHCHECK",
        "ENTRYPOINT",
        "CMD",
    ]
)
LENT = ("/etc/resolv.conf", "/etc/hosts", "/etc/ssl/certs", "/etc/pip.conf", "/etc/xdg/pip")
VARIABLES = re.compile(
    r"^(PIP_.*|.*_CERT_FILE|.*_CA_BUNDLE|SSL_CERT_.*|https?_proxy|no_proxy)$", re.IGNORECASE
)


@dataclass(frozen=True)
class Instruction:
    """One instruction: its word, and the rest of its lines joined."""

    word: str
    rest: str


def parse(text: str) -> list[Instruction]:
    """The instructions of a Dockerfile. Raises ``ValueError`` for a word that is not known here."""
    joined = re.sub(
        r"\\\n", " ", "\n".join(line for line in text.split("\n") if not line.lstrip().startswith("#"))
    )
    found = []
    for line in joined.split("\n"):
        if line.strip():
            word, _, rest = line.strip().partition(" ")
            if word not in KNOWN:
                raise ValueError(f"unknown instruction {word}")
            found.append(Instruction(word, " ".join(rest.split())))
    return found


@dataclass
class Image:
    """What a container is started with."""

    root: Path
    environment: dict[str, str] = field(default_factory=dict)
    user: str = "root"
    folder: str = "/"
    entrypoint: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)
    health: list[str] = field(default_factory=list)

    def start(self, command: Sequence[str], **options: object) -> subprocess.Popen[str]:
        """Run ``command`` as the image's user would, in process and mount namespaces of its own."""
        root = shlex.quote(str(self.root))
        inner = " && ".join([
            f"mount -t proc proc {root}/proc",
            f"mount --bind /dev {root}/dev",
            *(f"mount --bind {place} {root + place}" for place in LENT if self._lend(place)),
            f"exec {shutil.which('chroot')} --userspec={self.user} {root} "
            f"/usr/bin/env -C {shlex.quote(self.folder)} "
            + shlex.join(command),
        ])  # fmt: skip
        lent = {name: value for name, value in os.environ.items() if VARIABLES.match(name)}
        environment = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", **lent}
        environment |= {"HOME": self.folder, **self.environment}
        arguments = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "bash", "-c", inner]
        return subprocess.Popen(arguments, env=environment, **options)  # type: ignore[call-overload, no-any-return]

    def run(self, command: Sequence[str]) -> None:
        """As ``start``, and wait. Raises ``CalledProcessError``."""
        process = self.start(command)
        if process.wait():
            raise subprocess.CalledProcessError(process.returncode, list(command))

    def _lend(self, place: str) -> bool:
        if not os.path.exists(place):
            return False
        target = Path(f"{self.root}{place}")
        if os.path.isdir(place):
            target.mkdir(parents=True, exist_ok=True)
        elif not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.touch()
        return True


class Stage:
    """One stage while it is built."""

    def __init__(self, root: Path, earlier: dict[str, Path]) -> None:
        self.image, self._earlier = Image(root), earlier

    def do(self, step: Instruction) -> None:
        """Follow one instruction."""
        image, rest = self.image, step.rest
        if step.word == "RUN":
            image.run(["/bin/sh", "-c", rest])
        elif step.word == "WORKDIR":
            image.folder = rest
            Path(f"{image.root}{rest}").mkdir(parents=True, exist_ok=True)
        elif step.word == "COPY":
            self._copy(rest)
        elif step.word == "ENV":
            image.environment |= dict(pair.split("=", 1) for pair in shlex.split(rest))
        elif step.word == "USER":
            image.user = rest
        elif step.word == "ENTRYPOINT":
            image.entrypoint = json.loads(rest)
        elif step.word == "CMD":
            image.command = json.loads(rest)
        elif step.word == "HEALTHCHECK":
            image.health = json.loads(rest[rest.index("CMD") + 3 :])

    def _copy(self, rest: str) -> None:
        words = rest.split()
        source = ROOT
        if words[0].startswith("--from="):
            source = self._earlier[words.pop(0).removeprefix("--from=")]
        *names, target = words
        place = Path(f"{self.image.root}{os.path.join(self.image.folder, target)}")
        for name in names:
            origin = source / name.lstrip("/")
            if origin.is_dir():
                shutil.copytree(origin, place, symlinks=True, dirs_exist_ok=True, ignore=_ignored)
            else:
                place.mkdir(parents=True, exist_ok=True)
                shutil.copy2(origin, place)


def _ignored(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if fnmatch(name, "__pycache__") and folder.startswith(str(ROOT))]


def missing_tools() -> str | None:
    """Why nothing can be built here, or None."""
    if os.geteuid() != 0:
        return "needs root, for chroot"
    absent = [tool for tool in ("debootstrap", "unshare", "chroot") if shutil.which(tool) is None]
    return f"needs {', '.join(absent)}: apt-get install debootstrap" if absent else None


def _bare_root(cache: Path) -> Path:
    """Debian as ``debian:bookworm-slim`` begins, made once."""
    root = cache / f"debian-{SUITE}"
    if not root.exists():
        part = root.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        subprocess.run(
            ["debootstrap", "--variant=minbase", SUITE, str(part), MIRROR], check=True, stdout=sys.stderr
        )
        part.rename(root)
    return root


def build(dockerfile: Path, folder: Path, cache: Path) -> Image:
    """Follow every instruction; the image of the last stage. Stages are kept in ``folder``."""
    earlier: dict[str, Path] = {}
    stage: Stage | None = None
    for step in parse(dockerfile.read_text("utf-8")):
        print(f"== {step.word} {step.rest}"[:120], file=sys.stderr, flush=True)
        if step.word == "FROM":
            base, _, name = step.rest.partition(" AS ")
            if base != f"debian:{SUITE}-slim":
                raise ValueError(f"the base {base} is not known here")
            root = folder / f"stage-{len(earlier)}"
            subprocess.run(["cp", "-a", str(_bare_root(cache)), str(root)], check=True)
            stage = Stage(root, dict(earlier))
            earlier[name or str(len(earlier))] = root
        else:
            assert stage is not None, "an instruction before FROM"
            stage.do(step)
    assert stage is not None
    return stage.image


if __name__ == "__main__":
    target = Path(sys.argv[1])
    made = build(ROOT / "Dockerfile", target, target)
    print(f"{made.root}: {shlex.join([*made.entrypoint, *made.command])} as {made.user}")
