"""Definition files of Apptainer images: read, and linted against what Apptainer documents. Pure.

Apptainer finds some mistakes only when it builds, after minutes, and some never: a header key it
does not know, a section it would drop, an argument that is used and not defined, a stage that does
not exist. Two rules are this project's own: no image's environment preloads anything (a preloaded
GekkoFS client belongs to one process, see run.sh), and every argument has a default, so that the
versions an image was made of stand in its file.

`python -m launch.definition FILE...` prints what is wrong, as file:line: text, and ends with 1.
Must not know: processes, and whether the shell in the sections is right (`bash -n` does).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


SECTIONS = _words(
    "help setup files labels environment pre post runscript test startscript arguments"
)
APP_SECTIONS = _words("apphelp appinstall appfiles applabels appenv apprun appstart apptest")
SCRIPTS = _words("setup environment pre post runscript test startscript")
HEADER_KEYS = _words(
    "bootstrap from includecmd include library registry namespace stage mirrorurl updateurl"
    " osversion product user regcode productpgp registerurl modules fingerprints confurl setopt"
)
NUMBERED_KEY = re.compile(r"otherurl[0-9]+")
AGENTS: Mapping[str, tuple[str, ...]] = {
    # Bootstrap agent: the header keys it cannot do without.
    "docker": ("from",),
    "docker-archive": ("from",),
    "docker-daemon": ("from",),
    "oci": ("from",),
    "oci-archive": ("from",),
    "oras": ("from",),
    "library": ("from",),
    "shub": ("from",),
    "localimage": ("from",),
    "debootstrap": ("osversion", "mirrorurl"),
    "dnf": ("mirrorurl", "include"),
    "yum": ("mirrorurl", "include"),
    "zypper": ("mirrorurl", "include"),
    "busybox": ("mirrorurl",),
    "arch": (),
    "scratch": (),
}
TEMPLATE = re.compile(r"\{\{\s*([A-Za-z_][A-Za-z0-9_]*)\s*\}\}")
ARGUMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=\S.*")
PRELOAD = re.compile(r"\b(APPTAINERENV_)?LD_PRELOAD\b")


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong, and in which line (from 1)."""

    line: int
    text: str


@dataclass(frozen=True, slots=True)
class Section:
    """One section: its name without %, the words after it, its lines, and where it begins."""

    name: str
    words: tuple[str, ...]
    lines: tuple[str, ...]
    line: int

    @property
    def content(self) -> Iterator[tuple[int, str]]:
        """(line number, text) of lines that are neither blank nor comments."""
        for number, text in enumerate(self.lines, self.line + 1):
            if text.strip() and not text.strip().startswith("#"):
                yield number, text.strip()


@dataclass(slots=True)
class Stage:
    """One image on the way: header (lower-case key -> (line, value)) and sections."""

    header: dict[str, tuple[int, str]] = field(default_factory=dict)
    sections: list[Section] = field(default_factory=list)
    used: dict[str, int] = field(default_factory=dict)
    """Arguments that it uses: name -> the first line that does. Comments count."""

    def named(self, name: str) -> list[Section]:
        return [section for section in self.sections if section.name == name]

    @property
    def arguments(self) -> dict[str, tuple[int, str]]:
        """Arguments it gives a default: name -> (line, value). They hold in this stage alone."""
        content = [line for section in self.named("arguments") for line in section.content]
        parts = [(number, text.partition("=")) for number, text in content]
        return {name.strip(): (number, value.strip()) for number, (name, _, value) in parts}


@dataclass(slots=True)
class Definition:
    """A whole file: its stages in order, and what could not be read."""

    stages: list[Stage]
    problems: list[Problem]

    @property
    def arguments(self) -> dict[str, str]:
        """Arguments of all stages and their defaults."""
        stages = self.stages
        return {name: value for stage in stages for name, (_, value) in stage.arguments.items()}

    @property
    def used(self) -> set[str]:
        return {name for stage in self.stages for name in stage.used}


def parse(text: str) -> Definition:
    """The stages of a definition file. What is in no stage is a problem, not an exception."""
    definition = Definition([], [])
    lines: list[str] | None = None
    opened: tuple[str, tuple[str, ...], int] | None = None

    def close() -> None:
        nonlocal opened, lines
        if opened is not None and lines is not None:
            name, words, line = opened
            definition.stages[-1].sections.append(Section(name, words, tuple(lines), line))
        opened = lines = None

    for number, line in enumerate(text.splitlines(), 1):
        head = re.match(r"([A-Za-z0-9]+)\s*:\s*([^#]*)", line)
        if line.strip().startswith("%"):  # also where it is indented
            close()
            name, *words = line.lstrip()[1:].split() or [""]
            if line[0] != "%":
                definition.problems.append(Problem(number, "a line with % first begins a section"))
            if not definition.stages:
                definition.problems.append(Problem(number, f"%{name} before any Bootstrap"))
                definition.stages.append(Stage())
            opened, lines = (name.lower(), tuple(words), number), []
        elif head and line.lower().startswith("bootstrap:"):  # wherever it stands
            close()
            definition.stages.append(Stage({"bootstrap": (number, head[2].strip())}))
        elif lines is not None:
            lines.append(line)
        elif line.strip() and not line.strip().startswith("#"):
            _read_header(definition, number, line, head)
        for used in TEMPLATE.findall(line) if definition.stages else ():
            definition.stages[-1].used.setdefault(used, number)
    close()
    return definition


def _read_header(
    definition: Definition, number: int, line: str, head: re.Match[str] | None
) -> None:
    if head is None:
        definition.problems.append(Problem(number, f"neither a header nor in a section: {line}"))
    elif not definition.stages:
        definition.problems.append(Problem(number, f"{head[1]} before Bootstrap"))
    elif head[1].lower() in definition.stages[-1].header:
        definition.problems.append(Problem(number, f"{head[1]} stands twice"))
    else:
        definition.stages[-1].header[head[1].lower()] = (number, head[2].strip())


def lint(text: str, exists: Callable[[str], bool] = lambda path: True) -> list[Problem]:
    """What is wrong with a definition file, by line. `exists` says whether the machine that builds
    has a path that %files names."""
    definition = parse(text)
    found = list(definition.problems)
    if not definition.stages:
        return [Problem(1, "no Bootstrap: this is no definition file")]
    found += _arguments(definition)
    names: list[str] = []
    for stage in definition.stages:
        found += _header(stage)
        found += _sections(stage)
        found += _files(stage, names, exists)
        if "stage" in stage.header:
            names.append(stage.header["stage"][1])
    return sorted(found, key=lambda problem: (problem.line, problem.text))


def _arguments(definition: Definition) -> Iterator[Problem]:
    defaults: dict[str, str] = {}
    for stage in definition.stages:
        for section in stage.named("arguments"):
            for number, text in section.content:
                if not ARGUMENT.fullmatch(text):
                    yield Problem(number, f"an argument is NAME=VALUE, not {text!r}")
        for name, line in stage.used.items():
            if name not in stage.arguments:
                yield Problem(line, f"{{{{ {name} }}}} has no default in its stage's %arguments")
        for name, (line, value) in stage.arguments.items():
            if name not in stage.used:
                yield Problem(line, f"argument {name} is not used in its stage")
            if defaults.setdefault(name, value) != value:
                yield Problem(line, f"argument {name} has another default in a stage above")


def _header(stage: Stage) -> Iterator[Problem]:
    line, agent = stage.header.get("bootstrap", (1, ""))
    for key, (number, _) in stage.header.items():
        if key not in HEADER_KEYS and not NUMBERED_KEY.fullmatch(key):
            yield Problem(number, f"no such header key: {key}")
    if agent not in AGENTS:
        yield Problem(line, f"no such Bootstrap: {agent or 'none is given'}")
    for key in AGENTS.get(agent, ()):
        if not stage.header.get(key, (0, ""))[1]:
            yield Problem(line, f"Bootstrap: {agent} needs {key.capitalize()}")


def _sections(stage: Stage) -> Iterator[Problem]:
    seen: set[tuple[str, ...]] = set()
    for section in stage.sections:
        if section.name not in SECTIONS | APP_SECTIONS:
            yield Problem(section.line, f"no such section: %{section.name}")
        key = (section.name, *section.words)
        if key in seen:
            yield Problem(section.line, f"%{section.name} stands twice")
        seen.add(key)
        if section.name in APP_SECTIONS and len(section.words) != 1:
            yield Problem(section.line, f"%{section.name} needs the name of one app")
        for number, text in section.content:
            if section.name in SCRIPTS and PRELOAD.search(text):
                yield Problem(number, "an image preloads nothing; give run.sh --preload")
            if section.name == "labels" and len(text.split(maxsplit=1)) != 2:
                yield Problem(number, f"a label is a name and a value, not {text!r}")


def _files(stage: Stage, names: Sequence[str], exists: Callable[[str], bool]) -> Iterator[Problem]:
    for section in stage.named("files"):
        other = bool(section.words)
        if other and (len(section.words) != 2 or section.words[0] != "from"):
            yield Problem(section.line, "%files takes `from STAGE` or nothing")
        elif other and section.words[1] not in names:
            yield Problem(section.line, f"no stage above is named {section.words[1]}")
        for number, text in section.content:
            source = text.split()[0]
            if len(text.split()) > 2:
                yield Problem(number, "%files takes a source and a target")
            elif not other and not TEMPLATE.search(source) and not exists(source):
                yield Problem(number, f"there is no {source} where this is built")


def main(paths: Sequence[str]) -> int:
    """The command. Returns its exit status. Paths in %files count from the current directory."""
    status = 0
    for path in paths:
        for problem in lint(Path(path).read_text(), lambda name: Path(name).exists()):
            print(f"{path}:{problem.line}: {problem.text}")
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
