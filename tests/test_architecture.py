"""The rules of the house as code: who may import whom, how long a file may be, what is public."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parent.parent
ROOMS = {
    "agentgym_env": ROOT / "agentgym_env",
    "agentgym_servers": ROOT / "servers" / "agentgym_servers",
    "agentgym_adapters": ROOT / "adapters" / "agentgym_adapters",
    "agentgym_train": ROOT / "agentgym_train",
    "agentgym_gateway": ROOT / "servers" / "agentgym_gateway",
    "agentgym_viewer": ROOT / "servers" / "agentgym_viewer",
}
MAY_IMPORT = {
    "agentgym_env": set(),
    "agentgym_adapters": {"agentgym_env"},
    "agentgym_servers": {"agentgym_env", "agentgym_adapters"},
    "agentgym_train": {"agentgym_env", "agentgym_adapters"},
    "agentgym_gateway": {"agentgym_env", "agentgym_train"},
    "agentgym_viewer": {"agentgym_env"},
}
ENV_MAY_USE = {
    "gymnasium",
    "numpy",
    "requests",
    "urllib3",
    "aiohttp",
    "msgspec",
    "typer",
    "rich",
    "click",
    "packaging",
    "cloudpickle",
}
CONFINED = {
    "starlette": (),
    "fastapi": (),
    "uvicorn": ("agentgym_servers.",),
    "bm25s": ("agentgym_servers.worlds.search.retrieval.bm25_",),
    "faiss": ("agentgym_servers.worlds.search.retrieval.dense",),
    "sentence_transformers": ("agentgym_servers.worlds.search.retrieval.dense_encoder",),
    "ray": ("agentgym_servers.fleet.ray_cluster",),
    "mcp": ("agentgym_adapters.mcp_client", "agentgym_adapters.mcp_server"),
    "websockets": ("agentgym_adapters.openenv_socket",),
    "openenv": (),
    "nemo_gym": (),
    "vllm": ("agentgym_train.engines.vllm.",),
    "verifiers": ("agentgym_adapters.verifiers_",),
    "browsergym": (
        "agentgym_adapters.browsergym_tasks",
        "agentgym_adapters.agentlab_args",
        "agentgym_servers.web.chromium.",
    ),
    "trl": (
        "agentgym_train.training.rl",
        "agentgym_train.training.sft",
        "agentgym_train.training.dpo",
        "agentgym_train.training.update",
        "agentgym_adapters.trl_hooks",
    ),
}
LOADS_TORCH = {"audit", "_save"}
"""Functions of `agentgym_train.cli` whose imports load torch; what the others import must not."""
LOADERS = {
    "from_pretrained",
    "from_config",
    "SentenceTransformer",
    "CrossEncoder",
    "LLM",
    "EngineArgs",
    "AsyncEngineArgs",
    "GRPOConfig",
    "TrlSFTConfig",
    "TrlDPOConfig",
}
"""What loads a model, tokenizer or config, or is told how to."""
HEAVY = {"torch", "transformers", "trl", "accelerate", "datasets", "tokenizers", "matplotlib"}
MOST_LINES = 700
MOST_FUNCTION_LINES = 50
MOST_PUBLIC_NAMES = 15


def module_name(path: Path) -> str:
    room = next(name for name, folder in ROOMS.items() if folder in path.parents)
    parts = path.relative_to(ROOMS[room].parent).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


MODULES = {
    module_name(path): path for folder in ROOMS.values() for path in sorted(folder.rglob("*.py"))
}
TREES = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in MODULES.items()}


def imports(name: str, *, at_import_time: bool = False) -> Iterator[str]:
    """Every module that `name` imports; `at_import_time` leaves out those inside functions."""
    return imports_of(TREES[name], at_import_time=at_import_time)


def imports_of(tree: ast.AST, *, at_import_time: bool = False) -> Iterator[str]:
    """Every module that a part of a module imports."""
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop()
        if at_import_time and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if (
            at_import_time
            and isinstance(node, ast.If)
            and "TYPE_CHECKING" in ast.unparse(node.test)
        ):
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, ast.unparse(node)
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if full in MODULES else str(node.module)
        pending.extend(ast.iter_child_nodes(node))


def top(name: str) -> str:
    return name.partition(".")[0]


def test_a_package_imports_only_the_packages_below_it():
    for name in MODULES:
        foreign = {top(i) for i in imports(name)} & set(ROOMS) - {top(name)}
        assert foreign <= MAY_IMPORT[top(name)], f"{name} imports {foreign}"


def test_the_sdk_uses_only_its_few_dependencies():
    for name in (n for n in MODULES if top(n) == "agentgym_env"):
        used = {top(i) for i in imports(name)} - {"agentgym_env"} - sys.stdlib_module_names
        assert used <= ENV_MAY_USE, f"{name} imports {used - ENV_MAY_USE}"


def test_third_parties_stay_where_they_are_confined():
    for name in MODULES:
        for imported in {top(i) for i in imports(name)} & set(CONFINED):
            assert any(is_in(name, place) for place in CONFINED[imported]), (
                f"{name} uses {imported}"
            )


def is_in(name: str, place: str) -> bool:
    """Whether a module is the place, or in it if it ends in a dot or an underscore."""
    return name == place or (place.endswith((".", "_")) and name.startswith(place))


def light_modules() -> set[str]:
    """What the commands import that work without torch, the turn loop, and checks of agents."""
    commands = {name for name in MODULES if name.startswith("agentgym_train.cli.")}
    checked_early = {"agentgym_train.rollout.loop", "agentgym_gateway.agents"}
    found = {"agentgym_train", *checked_early, *commands}
    for tree in map(TREES.__getitem__, commands):
        for function in (n for n in tree.body if isinstance(n, ast.FunctionDef)):
            if function.name not in LOADS_TORCH:
                lean = [n for n in ast.walk(function) if is_lean_import(n)]
                heavy = {i for node in lean for i in imports_of(node)}
                found |= {i for i in imports_of(function) if i in MODULES and i not in heavy}
    return found


def is_lean_import(node: ast.AST) -> bool:
    """Whether a statement is `with lean_imports()`, in which a command loads torch at last."""
    return isinstance(node, ast.With) and ast.unparse(node.items[0]) == "lean_imports()"


def test_what_the_light_commands_import_loads_no_torch():
    light = light_modules()
    assert len(light) >= 10, "the commands import elsewhere now"
    for name in sorted(light):
        reached, pending = {name}, [name]
        while pending:
            module = pending.pop()
            for imported in imports(module, at_import_time=True):
                assert top(imported) not in HEAVY, f"{name} reaches {imported} through {module}"
                if imported in MODULES and imported not in reached:
                    reached.add(imported)
                    pending.append(imported)


def test_no_modules_import_one_another_in_a_circle():
    """Neither at the top, nor within a function, nor by a name in a text."""
    edges = {
        name: {i for i in (*imports(name), *named_modules(name)) if i in MODULES and i != name}
        for name in MODULES
    }
    while free := [name for name, needs in edges.items() if not needs]:
        for name in free:
            del edges[name]
        for needs in edges.values():
            needs.difference_update(free)
    while unused := edges.keys() - set().union(*edges.values()):
        for name in unused:
            del edges[name]
    assert not edges, f"in or between circles: {sorted(edges)}"


NAMED = re.compile(rf"((?:{'|'.join(ROOMS)})(?:\.\w+)+)(?::(\w+)(?:\.\w+)*)?")
"""A text that is the name of a module, or of something in it."""


def texts_with_modules(name: str) -> Iterator[tuple[re.Match[str], str]]:
    """(text, module) of each text in a module that names another of ours."""
    for node in ast.walk(TREES[name]):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            whole = NAMED.fullmatch(node.value)
            if whole is not None and not whole[1].endswith((".json", ".md")):
                module = whole[1]
                while module not in MODULES and "." in module:
                    module = module.rpartition(".")[0]
                yield whole, module


def named_modules(name: str) -> Iterator[str]:
    """Every module that `name` has the name of in a text."""
    return (module for _, module in texts_with_modules(name))


def test_modules_that_are_named_in_strings_exist():
    """Tables of modules, entry points and `python -m` name what the import rules cannot see."""
    for name in MODULES:
        for whole, module in texts_with_modules(name):
            assert module in MODULES and "." in module, f"{name} names {whole[0]}"
            if whole[2] is not None:
                assert whole[1] in MODULES, f"{name} names {whole[0]}"
                assert whole[2] in defined(module), f"{name} names {whole[0]}"
            assert allowed_by_string(name, module), f"{name} names {whole[0]}"


def test_the_settings_know_nothing_of_what_uses_them():
    """`config` uses what is below it, and what a setting names: agents, schedules and so on."""
    names = ("agent", "horizon", "samplers", "contrast", "gates")
    leaves = {f"agentgym_train.rollout.{name}" for name in names}
    for name in (n for n in MODULES if n.startswith("agentgym_train.config.")):
        used = {i for i in (*imports(name), *named_modules(name)) if top(i) == "agentgym_train"}
        above = {i for i in used if not i.startswith("agentgym_train.config.")} - leaves
        assert not above, f"{name} uses {above}"


def defined(module: str) -> set[str]:
    """The names that a module defines or imports at its top."""
    found: set[str] = set()
    for node in TREES[module].body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {t.id for t in targets if isinstance(t, ast.Name)}
    return found


def allowed_by_string(name: str, module: str) -> bool:
    """Whether a module may name another in a string: the same rule as for imports."""
    return top(name) == top(module) or top(module) in MAY_IMPORT[top(name)]


def test_no_module_is_named_by_a_text_that_is_put_together():
    """What an import function is given is a constant or a value from a table of constants."""
    for name, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr) and isinstance(node.values[0], ast.Constant):
                start = str(node.values[0].value)
                assert not re.match(rf"({'|'.join(ROOMS)})\.", start), f"{name}, line {node.lineno}"


def test_a_lower_package_runs_no_module_of_a_higher_one():
    for name, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.List):
                words = [e.value if isinstance(e, ast.Constant) else None for e in node.elts]
                for flag, module in pairwise(words):
                    if flag == "-m" and top(str(module)) in ROOMS:
                        assert allowed_by_string(name, str(module)), f"{name} runs {module}"


def test_a_file_is_one_whole_idea_and_says_what_it_is():
    for name, path in MODULES.items():
        lines = len(path.read_text(encoding="utf-8").splitlines())
        assert lines <= MOST_LINES, f"{name} has {lines} lines"
        assert ast.get_docstring(TREES[name]), f"{name} has no docstring"


def test_a_function_fits_a_screen():
    for name, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                first = node.body[0]
                # Signature and docstring are the contract, not the work.
                documented = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
                start = (first.end_lineno or 0) + 1 if documented else first.lineno
                length = (node.end_lineno or 0) - start + 1
                assert length <= MOST_FUNCTION_LINES, f"{name}.{node.name} has {length} lines"


def test_a_package_has_few_public_names():
    for name in ROOMS:
        declared = [
            element.value
            for node in ast.walk(TREES[name])
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
            for element in node.value.elts
        ]
        assert len(declared) <= MOST_PUBLIC_NAMES, name


def test_nothing_prints():
    for name, tree in TREES.items():
        called = {ast.unparse(n.func) for n in ast.walk(tree) if isinstance(n, ast.Call)}
        assert "print" not in called, name


def test_no_module_bears_the_name_of_a_package_it_wraps():
    for name in MODULES:
        own = name.rpartition(".")[2]
        assert own not in {top(i) for i in imports(name)} - {top(name)}, name


def test_whatever_loads_a_model_refuses_the_code_that_comes_with_it():
    scripts = [p for folder in ("examples", "benchmarks") for p in (ROOT / folder).rglob("*.py")]
    trees = TREES | {str(path): ast.parse(path.read_text(encoding="utf-8")) for path in scripts}
    refusing = 0
    for name, tree in trees.items():
        functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]
        within = {node: function for function in functions for node in ast.walk(function)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in LOADERS:
                unpacks = any(keyword.arg is None for keyword in node.keywords)
                # What is unpacked is a dict in the same function.
                written = ast.walk(within[node]) if unpacks and node in within else ()
                dicts = [part for part in written if isinstance(part, ast.Dict)]
                refuses = any(map(refuses_remote_code, [node, *dicts]))
                assert refuses, f"{name}, line {node.lineno}: pass trust_remote_code=False"
                refusing += 1
    assert refusing >= 13, "the loaders have other names now"


def refuses_remote_code(node: ast.AST) -> bool:
    """Whether a call or a dict of arguments has `trust_remote_code` as False."""
    given: list[tuple[str | None, ast.expr | None]] = []
    if isinstance(node, ast.Call):
        given = [(keyword.arg, keyword.value) for keyword in node.keywords]
    elif isinstance(node, ast.Dict):
        names = [key.value if isinstance(key, ast.Constant) else None for key in node.keys]
        given = list(zip(names, node.values, strict=True))
    return any(
        name == "trust_remote_code" and isinstance(value, ast.Constant) and value.value is False
        for name, value in given
    )
