"""Style as a test: docstrings, sizes, import layers and invariant citations.

A new module of the package needs one word in `LAYERS`; a new reason to touch the operating system
one line in `SYSTEM_USERS`. Everything is read with `ast`: nothing is imported.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "sharedfs_backend"

LAYERS = {
    # Bottom first. A module imports from its own layer and from those listed before it.
    "layout": "layout",
    "ground": "bounds exceptions fairlock identity identity_cache native rules runtime settings"
    " weights",
    "files": "files",
    "values": "audit buffers capacity columns context depth dirty economics gate keyring misses"
    " packcheck preload retention stats",
    "data path": "fdcache packjob reader readplan readqueue readstep readtask writeplan writer"
    " writestep",
    "catalog": "catalog catalog_values entries facts indexing keytable ledger packtable rows"
    " searching",
    "journal": "directories lostjournals namespace opening publisher realms refresh snapshots"
    " snapshotter",
    "sweep": "chores doubts orphans sweeper turns",
    "store": "auditor catalogview cutting finding loading parts putting puttask store storing"
    " waitlist",
    "tools": "cli stage tools",
    "adapters": "inprocess lmcache_common mp",
}

PURE_STDLIB = {
    "__future__",
    "collections",
    "dataclasses",
    "enum",
    "functools",
    "itertools",
    "json",
    "math",
    "re",
    "struct",
    "typing",
}
PURE_OTHERS = {PACKAGE, "blake3", "msgpack", "numpy", "pyarrow", "xxhash"}

SYSTEM = {"os", "io", "pathlib", "shutil", "tempfile", "mmap", "fcntl", "ctypes", "glob"}
SYSTEM_USERS = {
    # Top-level module: why it may touch the operating system.
    "files": "the only code that touches the shared file system",
    "runtime": "random bytes",
    "native": "the compiled loops, and the variable that switches them off",
    "searching": "calls the compiled lookup",
    "identity": "model directories, which are not in the namespace",
    "identity_cache": "a cache on the local disk",
    "weights": "weight files, which are not in the namespace",
    "settings": "the secret's file",
    "namespace": "makes the root directory, before there is a file layer",
    "store": "the process id, to survive a fork",
    "parts": "the number of cores",
    "opening": "the environment, which may preload a client",
    "preload": "the environment, which may preload a client",
    "buffers": "page-aligned memory",
    "columns": "memory that is given back to the system",
    "cli": "arguments and terminals",
    "lmcache_common": "addresses of tensors",
    "mp": "event descriptors",
    "inprocess": "environment and process id",
}

ENGINE = {"lmcache", "torch", "vllm"}

ROUTER_STORE = {
    # Module of the router: what it may import of the store beside `economics`, which is formulas.
    "announced": {"exceptions"},
    "announce": {"exceptions", "files", "identity", "layout", "namespace", "settings"},
    "announcer": {"files", "layout"},
    "registry": {"exceptions", "files", "layout", "namespace", "settings"},
    "chunkhash": {"layout"},
    "precision": {"catalogview", "exceptions", "settings"},
    "tier": {"catalogview"},
}
ROUTER_DECISIONS = {
    # Pure: state and time in, a choice out. They touch no socket, file, clock or event loop.
    "asks", "breaker", "choice", "common", "constants", "estimate", "fleet", "learning", "load",
    "outcome", "policies", "replica", "shadow", "tickets",
}  # fmt: skip
ROUTER_EFFECTS = {"asyncio", "os", "pathlib", "selectors", "socket", "ssl", "threading", "time"}

ROUTER_USES = {
    # What the router may import of the store: hashing, formulas, and how to read a namespace.
    "catalogview",
    "economics",
    "exceptions",
    "files",
    "identity",
    "layout",
    "namespace",
    "settings",
}


def modules(folder: str = PACKAGE) -> list[Path]:
    paths = (ROOT / folder).rglob("*.py")
    return sorted(path.relative_to(ROOT) for path in paths if "vendor" not in path.parts)


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse((ROOT / path).read_text(), str(path))


def top(path: Path) -> str:
    """The first name below the package: `files` for sharedfs_backend/files/api.py."""
    return path.with_suffix("").parts[1]


def imports(path: Path) -> Iterator[str]:
    """Dotted names imported anywhere in a module, except for type checking only."""
    pending: list[ast.AST] = [tree(path)]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            pending += node.orelse
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            if node.module == PACKAGE:
                yield from (f"{PACKAGE}.{alias.name}" for alias in node.names)
            else:
                yield node.module or ""
        pending += ast.iter_child_nodes(node)


def roots(path: Path) -> set[str]:
    return {name.split(".")[0] for name in imports(path)}


def layer_of() -> dict[str, int]:
    return {name: rank for rank, names in enumerate(LAYERS.values()) for name in names.split()}


def test_every_module_says_what_it_is_in_3_to_15_lines() -> None:
    wrong = {}
    for path in [*modules(), *modules("bench"), *modules("launch"), *modules("router")]:
        text = ast.get_docstring(tree(path)) or ""
        empty = not tree(path).body  # marks a package and says nothing
        if not empty and not 3 <= len(text.splitlines()) <= 15:
            wrong[str(path)] = len(text.splitlines())
    assert wrong == {}


def test_every_test_module_says_what_it_tests() -> None:
    paths = modules("tests")
    assert [str(path) for path in paths if not ast.get_docstring(tree(path))] == []


def test_a_module_past_400_lines_says_why() -> None:
    """Its docstring holds a sentence like "Past 400 lines because ..."."""
    wrong = {}
    for path in [*modules(), *modules("bench"), *modules("launch"), *modules("router")]:
        lines = len((ROOT / path).read_text().splitlines())
        reason = " ".join((ast.get_docstring(tree(path)) or "").split())
        if lines > 400 and "lines because" not in reason:
            wrong[str(path)] = lines
    assert wrong == {}


def test_every_module_has_one_layer() -> None:
    names = [name for line in LAYERS.values() for name in line.split()]
    assert len(names) == len(set(names))
    found = {top(path) for path in modules()} - {"__init__"}
    assert found - set(names) == set(), "add these to LAYERS"


def test_imports_point_downwards_only() -> None:
    ranks, wrong = layer_of(), []
    for path in modules():
        if top(path) == "__init__":
            continue  # the package itself shows the store to its users
        for name in imports(path):
            parts = name.split(".")
            if parts[0] != PACKAGE:
                continue
            target = parts[1] if len(parts) > 1 else "__init__"
            if ranks.get(target, 99) > ranks.get(top(path), -1):
                wrong.append(f"{path} imports {name}")
    assert wrong == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    below = {
        top(path): {name.split(".")[1] for name in imports(path) if name.startswith(PACKAGE + ".")}
        for path in modules()
        if len(path.parts) == 2 and top(path) != "__init__"
    }
    while free := [name for name, targets in below.items() if not targets & set(below) - {name}]:
        for name in free:
            del below[name]
    assert below == {}


def test_the_layout_is_pure() -> None:
    wrong = [
        f"{path} imports {name}"
        for path in modules(f"{PACKAGE}/layout")
        for name in sorted(roots(path) - PURE_STDLIB - PURE_OTHERS)
    ]
    assert wrong == []


def test_only_named_modules_touch_the_operating_system() -> None:
    wrong = [
        f"{path} imports {name}"
        for path in modules()
        if top(path) not in SYSTEM_USERS
        for name in sorted(roots(path) & SYSTEM)
    ]
    assert wrong == []


def test_only_the_adapters_import_the_engine() -> None:
    adapters = LAYERS["adapters"].split()
    wrong = [str(path) for path in modules() if roots(path) & ENGINE and top(path) not in adapters]
    assert wrong == []


def test_the_router_knows_nothing_of_the_store_but_hashes_formulas_and_reading() -> None:
    wrong = []
    for path in modules("router"):
        names = [name.split(".") for name in imports(path)]
        used = {parts[1] if len(parts) > 1 else "" for parts in names if parts[0] == PACKAGE}
        if used - ROUTER_USES or roots(path) & ENGINE:
            wrong.append(f"{path} imports {sorted(used - ROUTER_USES)}")
    assert wrong == []


def test_nothing_of_the_package_imports_tests_or_benchmarks() -> None:
    wrong = [str(path) for path in modules() if roots(path) & {"tests", "bench", "launch"}]
    assert wrong == []


def test_the_relay_knows_no_decisions() -> None:
    wrong = [
        f"{path} imports {name}"
        for path in modules("router/relay")
        for name in imports(path)
        if name.startswith(("router", PACKAGE)) and not name.startswith("router.relay")
    ]
    assert wrong == []


def test_the_routers_decisions_touch_nothing() -> None:
    wrong = [
        f"{path} imports {name}"
        for path in modules("router")
        if len(path.parts) == 2 and path.stem in ROUTER_DECISIONS
        for name in imports(path)
        if name.split(".")[0] in ROUTER_EFFECTS or name.startswith("router.relay")
    ]
    assert wrong == []


def test_the_router_imports_of_the_store_only_what_is_named() -> None:
    wrong = [
        f"{path} imports {name}"
        for path in modules("router")
        for name in imports(path)
        if name.startswith(PACKAGE)
        and name.split(".")[1:2] != []
        and name.split(".")[1] not in ROUTER_STORE.get(path.stem, set()) | {"economics"}
    ]
    assert wrong == []


def test_the_store_does_not_know_the_router() -> None:
    assert [str(path) for path in modules() if "router" in roots(path)] == []


@pytest.mark.parametrize("folder", [PACKAGE, "tests"])
def test_every_invariant_is_cited_in_code_and_in_tests(folder: str) -> None:
    here = Path(__file__).relative_to(ROOT)
    text = "\n".join((ROOT / path).read_text() for path in modules(folder) if path != here)
    cited = set(re.findall(r"\bI[1-9]\b", text))
    assert {f"I{number}" for number in range(1, 10)} - cited == set()
